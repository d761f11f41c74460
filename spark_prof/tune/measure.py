"""What a search asks engines for: real ones, or simulated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_prof.tune.trial import BASE, Combination, Stage, Trial


class TimeUpError(Exception):
    """No time is left; what was found until now is the result."""


class EngineEndedError(Exception):
    """The engine is gone, with the line why, and the combinations that the log blames for it."""

    def __init__(self, why: str, blamed: Sequence[Combination] = ()) -> None:
        super().__init__(why)
        self.blamed = tuple(blamed)


@dataclass(frozen=True)
class Pair:
    """What is measured in one engine: a combination over another."""

    combination: Combination
    than: Combination = BASE


class Measure(Protocol):
    """What the search asks engines for. Trials that were kept from an earlier run come at once."""

    floor: float  # gains up to it are not told apart from another capture of the same kernels
    batches: int  # batch sizes that each trial is measured at

    @property
    def left(self) -> float:
        """Seconds until the result has to be there."""

    @property
    def start_s(self) -> float:
        """What an engine takes from its start to its end, as far as that is known."""

    def holds(self, combination: Combination) -> bool:
        """Whether the engine that runs has it as a side."""

    def together(
        self,
        stage: Stage,
        number: int,
        pairs: Sequence[Pair],
        also: Sequence[Combination],  # further sides of the engine, should it have to be started
        seconds: float,  # for each pair at each batch size
        within: float,  # seconds after which the engine is given up
    ) -> Iterator[Trial]:
        """Measures pairs in one engine: that of the same stage that runs, or a new one."""

    def start(
        self, stage: Stage, number: int, alike: Sequence[Combination], within: float
    ) -> Iterator[Trial]:
        """Starts an engine of its own for combinations that differ in swaps only."""
