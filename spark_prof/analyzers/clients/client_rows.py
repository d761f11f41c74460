"""What a report says about the clients of a load generator, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_prof.analyzers.step_time import Ledger
from spark_prof.traces.benchmarks.load_test import RunFigures

BASES = ("window", "steps", "none")
"""What is compared: the same stretch of time by a shared clock; the run with recorded steps of as
many requests at a time; or nothing."""

VERDICTS = ("agrees", "slower", "faster", "unknown")
"""The client's time per token against the engine's."""


@dataclass(frozen=True)
class ClientComparison:
    """One time as the client and the engine have it, in us."""

    quantity: str  # output_token, chunk or first_token
    statistic: str  # mean or median: what both are
    client: float
    engine: float

    @property
    def difference(self) -> float:
        """How far the client's figure is above the engine's, as a fraction."""
        return self.client / self.engine - 1


@dataclass(frozen=True)
class ClientRow(RunFigures):
    """One run of a load generator beside the recorded steps."""

    basis: str = "none"  # one of BASES
    verdict: str = "unknown"  # one of VERDICTS
    steps: int = 0  # the recorded steps that were compared
    requests: int = 0  # the client's requests that were in flight in them; 0 where that is unknown
    comparisons: tuple[ClientComparison, ...] = ()
    sentences: tuple[str, ...] = ()  # what follows, and what to know before believing it


@dataclass(frozen=True)
class ClientToken:
    """One client's time per token or chunk beside a ledger's, in us."""

    tool: str
    label: str
    quantity: str  # output_token or chunk
    statistic: str  # mean or median: what `client_us` is
    client_us: float  # what the client waited
    batch_size: int | None  # of the ledger; None for decode steps of any size
    ledger_us: float  # time per token, beside a chunk the length of a step
    # What the client waited longer: its share of requests that queue, of steps that also read
    # prompts, of tokenizing and HTTP.
    beyond_us: float


def beside_clients(
    ledgers: tuple[Ledger, ...], clients: Iterable[ClientRow]
) -> tuple[ClientToken, ...]:
    """The clients that can be compared, each beside the decode ledger of its batch size."""
    decode = [ledger for ledger in ledgers if ledger.phase == "decode"]
    if not decode:
        return ()
    sizes = {ledger.batch_size: ledger for ledger in decode}
    tokens = []
    for row in clients:
        ledger = sizes.get(row.concurrency) or decode[0]
        for one in row.comparisons:
            us = ledger.step_us if one.quantity == "chunk" else None
            if one.quantity == "output_token" and ledger.ms_per_token is not None:
                us = 1e3 * ledger.ms_per_token
            if us is not None:
                figures = (one.quantity, one.statistic, one.client, ledger.batch_size)
                tokens.append(ClientToken(row.tool, row.label, *figures, us, one.client - us))
    return tuple(tokens)
