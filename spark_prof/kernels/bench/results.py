"""What a race between kernels found, and the ceilings of the machine that it ran on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Literal

from spark_prof.kernels.tuning import Work

OURS = "spark-prof"
"""The name of this project's kernels among contestants."""

Kind = Literal["dense", "moe", "fused"]


@dataclass(frozen=True)
class Spread:
    """A measured figure: the median of its repeats, and its quartiles."""

    median: float
    lower: float
    upper: float
    repeats: int


@dataclass(frozen=True)
class Result:
    """How one contestant did at one piece of work.

    Attributes:
        us: microseconds a call, None if it failed.
        error: how far its output is from the reference, None if it was not computed: the
            relative L2 distance, or the share of wrong bytes where every byte must agree.
        failed: why there is no time, one line; empty if there is one.
    """

    contestant: str
    us: Spread | None
    error: float | None
    failed: str = ""


@dataclass(frozen=True)
class Cell:
    """One piece of work and how every contestant did at it.

    Attributes:
        weight_bytes: what must be read of weights and their scales in one call.
        bytes: that and the activations that are read and written.
        is_lm_head: whether it is the last layer of a model.
        config: of this project's kernel, by name; empty where it has none.
    """

    kind: Kind
    work: Work
    label: str
    weight_bytes: int
    bytes: int
    is_lm_head: bool
    results: tuple[Result, ...]
    config: dict[str, int] = field(default_factory=dict)
    subject: str = OURS

    def us(self, contestant: str) -> float | None:
        """Its median time in microseconds, None if it has none."""
        for result in self.results:
            if result.contestant == contestant and result.us:
                return result.us.median
        return None

    @property
    def ours(self) -> float | None:
        """Median time of the subject, mostly this project's kernel."""
        return self.us(self.subject)

    def best_peer(self, *named: str) -> tuple[str, float] | None:
        """The fastest other contestant and its time.

        Args:
            named: only those whose names begin like one of these; any if there is none.
        """
        times = [
            (result.us.median, result.contestant)
            for result in self.results
            if result.us and result.contestant != self.subject and _begins(result.contestant, named)
        ]
        return min(times)[::-1] if times else None


@dataclass(frozen=True)
class Ceilings:
    """What the machine reaches, measured in the same run.

    Attributes:
        read: bytes a second that a kernel reads which does nothing else.
        copy: bytes a second, read and written, of a copy.
        launch_us: microseconds of an empty kernel among others in a CUDA graph.
    """

    read: Spread
    copy: Spread
    launch_us: Spread
    read_by: str
    copied_by: str
    launched: str

    def floor_us(self, cell: Cell) -> float:
        """What a call cannot take less than: its bytes at read bandwidth, and one launch."""
        return cell.bytes / self.read.median * 1e6 + self.launch_us.median

    def share(self, cell: Cell, us: float) -> float:
        """The share of read bandwidth at which a call that took so long read its weights."""
        return cell.weight_bytes / us * 1e6 / self.read.median


def spread(repeats: Sequence[float]) -> Spread:
    """Median and quartiles of at least two repeats."""
    lower, _, upper = quantiles(repeats, n=4, method="inclusive")
    return Spread(median(repeats), lower, upper, len(repeats))


def _begins(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(name.startswith(part) for part in parts)
