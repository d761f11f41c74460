"""How sure a figure of some steps is, where neighbours are alike and the machine drifts.

Steps of one recording are no independent draws: clocks, contexts and the host change slowly. So
whole stretches of steps are drawn again (the circular block bootstrap: Politis and Romano, 1992),
as long as neighbours stay alike. Two engine starts of the same thing differ by more than either
varies within. Of several recordings a side that is estimated (Welch's t); of one it cannot be, and
START is assumed, which also counts beside two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.arrays import Floats, Int64s

START: Mapping[str, float] = {"kernel": 0.015, "op": 0.02}
"""Standard deviation from engine start to engine start that is assumed where a side has one
recording, as a share and of all of its times alike: of a GPU's kernels, of a CPU engine's
operators."""

KERNEL_FLOOR = 0.005
"""What a kernel or a component differs by on its own from start to start, as a share. This and the
two below are the least error of parts of a step; docs/compare.md says where they were measured."""

CALL_FLOOR_US = 0.08
"""The same of one call of a kernel: where its data lies moves its time by about as much, in all of
its calls alike, and differently for each kernel."""

GAP_FLOOR = 0.03  # the same of the time in which nothing runs, as a share

PAIR_WEIGHT = 2.0
"""As how many recordings the assumption counts beside two of a side, which alone tell little: the
interval of two starts would otherwise be wider than that of one. Three stand for themselves."""

FEWEST: Mapping[str, int] = {"median": 8, "mean": 8, "p99": 200}
"""Steps of each side without which a statistic decides nothing."""

_STATISTICS: Mapping[str, Callable[[Floats], Floats]] = {
    "median": lambda rows: np.asarray(np.median(rows, axis=-1)),
    "mean": lambda rows: np.asarray(rows.mean(axis=-1)),
    "p99": lambda rows: np.asarray(np.quantile(rows, 0.99, axis=-1)),
}
_UPPER = 0.975
_SEED = 20251121
_MOST_RESAMPLES = 1000
_FEWEST_RESAMPLES = 100
_ELEMENTS = 1_000_000
_MOST_STEPS = 4000
FEWEST_STEPS = 4  # steps, or stretches of them, that an error needs


@dataclass(frozen=True)
class Figure:
    """A figure of one recording."""

    value: float
    # By how the steps vary within the recording; infinite of fewer than four, which do not tell.
    error: float
    free: float  # degrees of freedom of the error, one less than there are independent stretches
    floor: float = 0.0  # standard deviation that it has at least from recording to recording
    start: float = 0.0  # the same that all figures of a side's only recording are taken to share

    def times(self, factor: float) -> Figure:
        """The figure and its deviations in another unit, such as that of a step by token."""
        return replace(
            self,
            value=self.value * factor,
            error=self.error * factor,
            floor=self.floor * factor,
            start=self.start * factor,
        )


@dataclass(frozen=True)
class Change:
    """What a figure of side b is above that of side a, with a 95 % interval."""

    a: float  # the reference's figure, the mean of its recordings
    b: float  # the other's
    us: float  # b less a, in the figures' own unit
    low: float  # of the interval, in that unit
    high: float
    # The interval as a share of a's figure; None where it is that of `low` and `high`.
    share_low: float | None = None
    share_high: float | None = None
    # Of the recordings of both sides; empty of what has no noise.
    figures: tuple[tuple[Figure, ...], tuple[Figure, ...]] = ((), ())

    @property
    def sure(self) -> bool:
        """Whether 0 lies outside of the interval."""
        return self.low > 0 or self.high < 0

    @property
    def shares(self) -> tuple[float, float]:
        """The interval of the change as a share of a's figure."""
        if self.share_low is None or self.share_high is None:
            return self.share(self.low), self.share(self.high)
        return self.share_low, self.share_high

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
    correlation = np.fft.irfft(power)[: count // 2] / float((rank**2).sum())
    # A correlation of independent steps stays below this 95 times out of 100.
    below = np.flatnonzero(correlation < 1.96 / math.sqrt(count))
    reach = int(below[0]) if len(below) else len(correlation)
    together = 1 + 2 * float(correlation[1:reach].sum())
    longest = count // FEWEST_STEPS
    return min(max(math.ceil(3 * together), round(math.cbrt(count))), longest)


def drawn_again(count: int, stretch: int, resamples: int, seed: int) -> Int64s:
    """Places of so many steps, as many times drawn again stretch by stretch: a row each time."""
    starts = np.random.default_rng(seed).integers(0, count, (resamples, math.ceil(count / stretch)))
    places = (starts[:, :, None] + np.arange(stretch)) % count
    return np.asarray(places.reshape(resamples, -1)[:, :count])


def figure_of(values: Floats, statistic: str, start: float) -> Figure:
    """A statistic of FEWEST, with its error, of steps in order; the same always give the same."""
    compute = _STATISTICS[statistic]
    value, count = float(compute(values)), len(values)
    if count < FEWEST_STEPS:
        return Figure(value, math.inf, 1.0, start=start * value)
    # The rest of a very long recording narrows nothing that matters: starts differ by more.
    values = values[:_MOST_STEPS]
    stretch = stretch_of(values)
    resamples = min(max(_ELEMENTS // len(values), _FEWEST_RESAMPLES), _MOST_RESAMPLES)
    drawn = compute(values[drawn_again(len(values), stretch, resamples, _SEED)])
    free = max(len(values) / stretch - 1, 1.0)
    return Figure(value, float(drawn.std()), free, start=start * value)


def change(a: Iterable[Figure], b: Iterable[Figure]) -> Change:
    """From side a's figure of each recording to side b's, with the interval of the difference."""
    sides = tuple(a), tuple(b)
    before, after = (_mean(side) for side in sides)
    us = after - before
    # The wider of two intervals: by what recordings differ, and by what each varies within.
    errors = [_between(*sides), _between(*sides[::-1])], [*map(_within, sides)]
    wide = max(map(_half_width, errors))
    ends = [interval for pair in errors if (interval := _ratio(before, after, pair))]
    low, high = min((low for low, _ in ends), default=None), max((h for _, h in ends), default=None)
    return Change(before, after, us, us - wide, us + wide, low, high, sides)


def interval_of(figures: Sequence[Figure]) -> tuple[float, float]:
    """The 95 % interval of one side's own figure."""
    value = _mean(figures)
    wide = max(_half_width([error]) for error in (_between(figures, ()), _within(figures)))
    return value - wide, value + wide


class _Error(NamedTuple):
    """Variance of a side's mean, and its degrees of freedom."""

    variance: float
    free: float


def _mean(figures: Sequence[Figure]) -> float:
    return sum(figure.value for figure in figures) / len(figures)


def _between(figures: Sequence[Figure], other_side: Sequence[Figure]) -> _Error:
    """By how much the recordings of a side differ; of one alone START is assumed.

    Where the other side has several that differ by more, as much is taken to hold for this one.
    """
    if len(figures) > 1:
        count = len(figures)
        spread = _Error(float(np.var([figure.value for figure in figures], ddof=1)), count - 1.0)
        if count == 2:
            spread = _with_assumed(spread, figures)
        return _Error(spread.variance / count, spread.free)
    [alone] = figures
    starts = _Error(alone.floor**2 + alone.start**2, math.inf)
    if len(other_side) > 1 and (other := _mean(other_side)):
        variance = (
            float(np.var([figure.value for figure in other_side], ddof=1))
            * (alone.value / other) ** 2
        )
        if variance > starts.variance:
            starts = _Error(variance, len(other_side) - 1.0)
    return _added([_Error(alone.error**2, alone.free), starts])


def _with_assumed(estimate: _Error, figures: Sequence[Figure]) -> _Error:
    """The variance of two recordings, and what is assumed of starts as PAIR_WEIGHT more."""
    assumed = sum(e.error**2 + e.floor**2 + e.start**2 for e in figures) / len(figures)
    if not math.isfinite(assumed) or not assumed:
        return estimate
    free = estimate.free + PAIR_WEIGHT
    return _Error((estimate.free * estimate.variance + PAIR_WEIGHT * assumed) / free, free)


def _within(figures: Sequence[Figure]) -> _Error:
    if len(figures) == 1:
        return _between(figures, ())
    count = len(figures)
    errors = [_Error((figure.error / count) ** 2, figure.free) for figure in figures]
    return _added([*errors, *(_Error((figure.floor / count) ** 2, math.inf) for figure in figures)])


def _added(errors: Sequence[_Error]) -> _Error:
    """Independent errors together (Welch and Satterthwaite)."""
    variance = sum(error.variance for error in errors)
    if not math.isfinite(variance):
        return _Error(math.inf, 1.0)
    spent = sum(error.variance**2 / error.free for error in errors)
    return _Error(variance, variance**2 / spent if spent else math.inf)


def _half_width(errors: Sequence[_Error]) -> float:
    whole = _added(errors)
    return _quantile(whole.free) * math.sqrt(whole.variance)


def _ratio(a: float, b: float, errors: Sequence[_Error]) -> tuple[float, float] | None:
    """The interval of b over a, less 1, where both are uncertain (Fieller's).

    It contains 0 where that of the difference does. None where a is not above 0.
    """
    if a <= 0:
        return None
    whole = _added(errors)
    reach = _quantile(whole.free) ** 2
    least = a * a - reach * errors[0].variance
    if not math.isfinite(whole.variance) or least <= 0:
        return -math.inf, math.inf
    inside = (a * b) ** 2 - least * (b * b - reach * errors[1].variance)
    root = math.sqrt(max(inside, 0.0))
    return (a * b - root) / least - 1, (a * b + root) / least - 1


def _quantile(free: float) -> float:
    """Student's t for the interval; between whole degrees of freedom by their inverse."""
    free = min(max(free, 1.0), 1_000_000.0)
    below = int(free)
    ends = [student_quantile(_UPPER, degrees) for degrees in (below, below + 1)]
    passed = (1 / below - 1 / free) / (1 / below - 1 / (below + 1))
    return ends[0] + passed * (ends[1] - ends[0])
