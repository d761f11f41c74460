"""What a report says about the clients of a load generator, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.traces.benchmarks.load_test import RunFigures

BASES = ("window", "steps", "none")
"""What is compared: the same stretch of time by a shared clock; the run with recorded steps of as
many requests at a time; or nothing."""

VERDICTS = ("agrees", "slower", "faster", "unknown")
"""The client's time per token against the engine's."""


@dataclass(frozen=True)
class Comparison:
    """One time as the client and the engine have it, in us."""

    quantity: str  # output_token, chunk or first_token
    statistic: str  # mean or median: what `client` is; `engine` is always a mean
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
    comparisons: tuple[Comparison, ...] = ()
    sentences: tuple[str, ...] = ()  # what follows, and what to know before believing it
