"""How sure a figure of some steps is, where neighbours are alike and the machine drifts.

Steps of one recording are no independent draws: clocks, contexts and the host change slowly. So
whole stretches of steps are drawn again (the circular block bootstrap: Politis and Romano, 1992),
as long as neighbours stay alike. Two recordings of the same thing differ by more than either
varies within: FLOORS says by how much, and is part of every error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.student import student_quantile

__all__ = [
    "CALL_FLOOR_US",
    "FEWEST",
    "FEWEST_STEPS",
    "FLOORS",
    "GAP_FLOOR",
    "Change",
    "Figure",
    "change",
    "figure_of",
    "stretch_of",
]

Floats = npt.NDArray[np.float64]

FLOORS: Mapping[str, float] = MappingProxyType({"kernel": 0.005, "op": 0.02})
"""Standard deviation of a recording's times from start to start, as a share: of a GPU's kernels,
of a CPU engine's operators. docs/compare.md says on which recordings it was measured."""

CALL_FLOOR_US = 0.08
"""The same of one call of a kernel: where its data lies moves its time by about as much, in all of
its calls alike, and differently for each kernel."""

GAP_FLOOR = 0.03
"""The same of the time in which nothing runs, as a share."""

FEWEST: Mapping[str, int] = MappingProxyType({"median": 8, "mean": 8, "p99": 200})
"""Steps of each side without which a statistic decides nothing."""

_STATISTICS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "median": lambda rows: np.asarray(np.median(rows, axis=-1)),
        "mean": lambda rows: np.asarray(rows.mean(axis=-1)),
        "p99": lambda rows: np.asarray(np.quantile(rows, 0.99, axis=-1)),
    }
)
_CONFIDENCE = 0.95
_SEED = 20251121
_MOST_RESAMPLES = 1000
_FEWEST_RESAMPLES = 100
_ELEMENTS = 1_000_000
_MOST_STEPS = 4000
FEWEST_STEPS = 4
"""Steps, or stretches of them, that an error needs."""


@dataclass(frozen=True)
class Figure:
    """A figure of one recording.

    Attributes:
        value: of the steps.
        error: its standard error by how they vary within the recording; infinite of fewer than
            four steps, which say nothing of that.
        free: degrees of freedom of the error, one less than there are independent stretches.
        floor: standard deviation of the figure from recording to recording of the same thing.
    """

    value: float
    error: float
    free: float
    floor: float


@dataclass(frozen=True)
class Change:
    """What a figure of side b is above that of side a, with a 95 % interval.

    Attributes:
        a: the reference's figure.
        b: the other's.
        us: b less a, in the figures' own unit.
        low: of the interval, in that unit.
        high: of the interval.
    """

    a: float
    b: float
    us: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether 0 lies outside of the interval."""
        return self.low > 0 or self.high < 0

    def share(self, us: float) -> float:
        """A change as a share of a's figure; infinite where that is 0 and the change is not."""
        if self.a:
            return us / abs(self.a)
        return math.copysign(math.inf, us) if us else 0.0


def stretch_of(values: Floats) -> int:
    """How many neighbouring steps are drawn together: three times as long as they are alike.

    By ranks, so that a hiccup of the host counts no more than any other long step. No longer than
    a quarter of the recording, which leaves four stretches.
    """
    count = len(values)
    if count < 2 * FEWEST_STEPS:
        return 1
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable") - (count - 1) / 2
    power = np.abs(np.fft.rfft(rank, 2 * count)) ** 2
    alike = np.fft.irfft(power)[: count // 2] / float((rank**2).sum())
    # A correlation of independent steps stays below this 95 times out of 100.
    below = np.flatnonzero(alike < 1.96 / math.sqrt(count))
    reach = int(below[0]) if len(below) else len(alike)
    together = 1 + 2 * float(alike[1:reach].sum())
    longest = count // FEWEST_STEPS
    return min(max(math.ceil(3 * together), round(math.cbrt(count))), longest)


def figure_of(values: Floats, statistic: str, floor: float) -> Figure:
    """A statistic of steps with its error; the same steps always give the same.

    Args:
        values: of steps, in the order in which they ran; at least one.
        statistic: median, mean or p99.
        floor: of FLOORS.
    """
    compute = _STATISTICS[statistic]
    value, count = float(compute(values)), len(values)
    if count < FEWEST_STEPS:
        return Figure(value, math.inf, 1.0, floor * value)
    # The rest of a very long recording narrows nothing that matters: the floor is wider.
    values = values[:_MOST_STEPS]
    stretch = stretch_of(values)
    resamples = min(max(_ELEMENTS // len(values), _FEWEST_RESAMPLES), _MOST_RESAMPLES)
    random = np.random.default_rng(_SEED)
    starts = random.integers(0, len(values), (resamples, math.ceil(len(values) / stretch)))
    places = (starts[:, :, None] + np.arange(stretch)) % len(values)
    drawn = compute(values[places.reshape(resamples, -1)[:, : len(values)]])
    free = max(len(values) / stretch - 1, 1.0)
    return Figure(value, float(drawn.std()), free, floor * value)


def change(a: Figure, b: Figure) -> Change:
    """From side a's figure to side b's, with the interval of the difference.

    Args:
        a: of the reference.
        b: of the other.
    """
    within = [a.error**2, b.error**2]
    variance = sum(within) + a.floor**2 + b.floor**2
    difference = b.value - a.value
    if not math.isfinite(variance):
        return Change(a.value, b.value, difference, -math.inf, math.inf)
    # Welch and Satterthwaite; the floor is taken as known.
    spent = sum(v**2 / side.free for v, side in zip(within, (a, b), strict=True))
    free = variance**2 / spent if spent else math.inf
    wide = _quantile(free) * math.sqrt(variance)
    return Change(a.value, b.value, difference, difference - wide, difference + wide)


def _quantile(free: float) -> float:
    # The approximation holds from 2 on, and far out it is the normal distribution's.
    return student_quantile((1 + _CONFIDENCE) / 2, int(min(max(free, 2), 1_000_000)))
