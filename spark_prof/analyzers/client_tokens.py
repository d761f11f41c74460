"""What clients waited for a token, beside the typical decode step of the same recording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_prof.analyzers.clients.client_rows import ClientRow
from spark_prof.analyzers.step_time import Ledger


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
    found = []
    for row in clients:
        ledger = sizes.get(row.concurrency) or decode[0]
        for one in row.comparisons:
            us = ledger.step_us if one.quantity == "chunk" else None
            if one.quantity == "output_token" and ledger.ms_per_token is not None:
                us = 1e3 * ledger.ms_per_token
            if us is not None:
                told = (one.quantity, one.statistic, one.client, ledger.batch_size)
                found.append(ClientToken(row.tool, row.label, *told, us, one.client - us))
    return tuple(found)
