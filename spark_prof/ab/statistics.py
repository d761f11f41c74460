"""How much faster one side is than the other, and how sure that is.

Each quad compares two blocks of one side with two of the other at nearly the same time, so quads
are what is resampled. The gain is a ratio of means over the middle quads: a fifth of them is left
out at either end, by their ratio. Whatever disturbs a few quads moves it little, and as a ratio of
two equal sides is as often above 1 as below, that favours no side. The interval is the percentile
bootstrap of that (Wilcox, Introduction to Robust Estimation and Hypothesis Testing, chapter 4),
with percentiles moved outwards so that few quads do not make it too narrow (Hesterberg, What
Teachers Should Know About the Bootstrap, 2015: "expanded percentile").

`claimed` and `floor` are the rule. Reports call them with the intervals of a run, `minimum_effect`
with those of simulated runs, so that what is printed has the power that it says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spark_prof.ab.timed_steps import Dropped, Quad
from spark_prof.analyzers.t_distribution import student_quantile

CAPTURES_APART = 0.002
"""By what share two captures of the same kernels differ at most, steadily: 0.03 to 0.2 % on H100s
(benchmarks/results/ab). Side b is always another capture than a."""
_POWER = 0.8
_DRAWS = 20_000
_POWER_SEED = 20251122
_HALVINGS = 14
_LARGEST = 1e6

Values = Any
"""A number, or an array with one for each simulated run."""


@dataclass(frozen=True)
class GainSpread:
    """How much a measured gain varies from run to run."""

    half_width: float  # of its 95 % interval, as a logarithm, without the clock's share
    free: int  # degrees of freedom on which that width rests
    wider: float = 1.0  # how many times wider than Student's t would have it that interval is
    clock: float = 0.0  # by what share of the gain the clock's resolution widens either end
    off: float = 0.0  # logarithm of the gain around which runs lie
    captured_again: bool = False  # the second side has CUDA graphs of its own


def claimed(low: Values, high: Values, floor: Values) -> tuple[Values, Values]:
    """Whether b is faster, and whether it is slower: the whole interval lies beyond the floor."""
    return low > 1 + floor, high * (1 + floor) < 1


Effect = Literal["faster", "slower", "no effect", "not told"]
"""What an interval says of b. "Not told" where there is none, or where it reaches beyond a
negligible effect without showing one: that does not say that there is none."""

_NEGLIGIBLE = 0.02


def effect_of_gain(gain: Interval | None, floor: float = 0.0) -> Effect:
    """What a gain and its interval tell, beyond a floor.

    Example:
        >>> effect_of_gain(Interval(1.1, 0.9, 1.4))
        'not told'
    """
    if gain is None:
        return "not told"
    faster, slower = claimed(gain.low, gain.high, floor)
    if faster or slower:
        return "faster" if faster else "slower"
    least, most = 1 / (1 + _NEGLIGIBLE), 1 + _NEGLIGIBLE
    return "no effect" if least <= gain.low <= gain.high <= most else "not told"


def floor(passed: Values, reach: Values, captured_again: bool) -> Values:
    """The share below which a test of a against itself forbids to claim an effect.

    None where it passed, its interval containing 1: that already holds what varies from quad to
    quad. Else it is how far from 1 the interval reaches.
    """
    least = CAPTURES_APART if captured_again else 0.0
    return np.where(passed, least, np.maximum(reach, least))


def minimum_effect(run: GainSpread, tests: Sequence[GainSpread] = ()) -> float:
    """The effect, as a share, that four of five runs like this one claim.

    Runs are simulated, each with an interval and tests of its own, as of a normal gain whose
    variance has to be estimated. The width that was found counts as the median of such widths.
    So runs print this effect too high as often as too low, and their median has the power.
    """
    low, high = _intervals(run, 0)
    floors = np.zeros(_DRAWS)
    for place, test in enumerate(tests, start=1):
        first, last = _intervals(test, place)
        reach = np.maximum(abs(first - 1), abs(last - 1))
        passed = (first <= 1) & (last >= 1)
        floors = np.maximum(floors, floor(passed, reach, test.captured_again))

    def power(effect: float) -> float:
        return float(claimed(low * (1 + effect), high * (1 + effect), floors)[0].mean())

    least, enough = 0.0, max(float(np.expm1(run.half_width)), 1e-4)
    while power(enough) < _POWER and enough < _LARGEST:
        least, enough = enough, 2 * enough
    for _ in range(_HALVINGS):
        middle = (least + enough) / 2
        least, enough = (least, middle) if power(middle) >= _POWER else (middle, enough)
    return enough


def _intervals(spread: GainSpread, place: int) -> tuple[Array, Array]:
    """Both ends of the interval in each simulated run, around a gain of exp(off)."""
    scale, deviation = _draws(spread.free, place)
    error = spread.half_width / (spread.wider * student_quantile(_TAIL, spread.free))
    gain = np.exp(spread.off + error * deviation)
    wide = np.exp(spread.half_width * scale)
    return gain * (1 / wide - spread.clock), gain * (wide + spread.clock)


@lru_cache(maxsize=64)
def _draws(free: int, place: int) -> tuple[Array, Array]:
    """Estimates of a standard deviation, of median 1, and deviations in units of that."""
    random = np.random.default_rng((_POWER_SEED, place))
    scale = np.sqrt(random.chisquare(free, _DRAWS) / free)
    typical = float(np.median(scale))
    return scale / typical, random.standard_normal(_DRAWS) / typical


FEWEST_QUADS = 5
"""All of fewer lie on one side of the truth in more than 10 % of all runs."""
_FEWEST_FOR_POWER = 20
"""Among fewer, one that is far from the others does not show: of 12 quads with recorded noise 73 to
89 % of runs, and not 80 %, claimed the effect (benchmarks/ab_power.py)."""
_FEWEST_UNSEEN = 30
"""With so many, quads far from the others change little: more are left out than there may be."""
_TOO_WIDE = 1.1
"""By that over their number the percentiles of few quads are wider than their gain varies: 1.09 to
1.15 times with 12, 1.02 to 1.07 with 20, whatever the noise (benchmarks/ab_power.py)."""
_WIDEST = 20
"""Times an interval's lower end, or the clock's resolution: beyond, no effect can be told."""
_FAR = 8.0
"""Of a quad's ratio from the median one, in deviations estimated from the median deviation."""
_RESAMPLES = 4000
_SEED = 20251121
_TRIMMED = 0.2
_TAIL = 0.975  # of both ends of a 95 % interval
_CLOCK_US = 0.5
"""What a CUDA event resolves (CUDA Runtime API, cudaEventElapsedTime): no mean of a step knows
more, however many there are. An interval is that much wider at either end."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Estimate:
    """What a run of quads says of two sides.

    A step that decodes gives each of its requests one token: its time is the time per token.
    """

    a_us: float | None  # time of a step on the first side, None where nothing counts
    b_us: float | None  # time of a step on the second side
    gain: Interval | None  # a_us / b_us; None where too little counts
    saved_us: Interval | None  # a_us - b_us
    detectable: float | None
    """The minimum detectable effect, which four of five runs like this one claim, as a share: 0.004
    is a gain of 1.004. Of a result's runs it is that of the whole rule, tests of a against itself
    included. None where it is not known, see `why_unknown`."""
    quads: int  # that count; of engines that were started for each side, the starts
    steps: int  # that count, of both sides
    dropped: tuple[Dropped, ...]  # quads that do not count
    method: str  # what the interval rests on, in words
    missing: str  # why there is no gain; empty where there is one
    apart: float | None = None
    """By what share two engine starts of the same side differ at most; None in one engine."""
    outliers: int | None = None
    """Quads that count and are far from the others; None where that was not looked at."""


@dataclass(frozen=True)
class AATest:
    """A side compared with itself, which must come out as no effect."""

    estimate: Estimate  # as of two sides
    passed: bool
    """The interval of the gain contains 1; False where there is none. Of runs in which all is well
    5 % do not pass."""
    floor: float | None
    """How far from 1 the interval reaches, as a share; None where there is no interval. Where the
    test did not pass, no smaller effect is claimed."""
    line: str  # the verdict in words


def compare(quads: Sequence[Quad], dropped: Sequence[Dropped] = ()) -> Estimate:
    """The gain of the second side over the first; the same quads always give the same."""
    steps = sum(quad.steps for quad in quads)
    times = np.array([(quad.a_us, quad.b_us) for quad in quads], dtype=np.float64).reshape(-1, 2)
    if len(quads) < FEWEST_QUADS:
        missing = f"{len(quads)} quads count; no interval is given for fewer than {FEWEST_QUADS}"
        if dropped:
            missing += f" ({len(dropped)} were dropped)"
        a_us, b_us = times.mean(0).tolist() if len(quads) else (None, None)
        return Estimate(
            a_us, b_us, None, None, None, len(quads), steps, tuple(dropped), "", missing
        )
    ranked = times[np.argsort(times[:, 0] / times[:, 1], kind="stable")]
    a_us, b_us = _middle_quads(ranked, np.arange(len(quads))[None])[0].tolist()
    random = np.random.default_rng(_SEED)
    drawn = _middle_quads(ranked, random.integers(0, len(quads), (_RESAMPLES, len(quads))))
    gains, saved = drawn[:, 0] / drawn[:, 1], drawn[:, 0] - drawn[:, 1]
    clock = _CLOCK_US / min(a_us, b_us)
    estimate = Estimate(
        a_us,
        b_us,
        gain=_widened(_percentiles(a_us / b_us, gains, len(quads)), a_us / b_us * clock),
        saved_us=_widened(_percentiles(a_us - b_us, saved, len(quads)), _CLOCK_US),
        detectable=None,
        quads=len(quads),
        steps=steps,
        dropped=tuple(dropped),
        method=f"paired bootstrap over {len(quads)} quads, {_RESAMPLES:,} resamples",
        missing="",
        outliers=_outliers(np.log(ranked[:, 0] / ranked[:, 1]), clock),
    )
    return _with_detectable(estimate)


def compare_starts(
    a_us: Sequence[float],
    b_us: Sequence[float],
    steps: int,
    fewest: int = 2,
    other_b_us: Sequence[float] = (),
) -> Estimate:
    """The gain where each side needs an engine of its own: each start counts as one value.

    Engines differ from start to start by more than steps do, so the interval rests on the starts
    alone: Student's t on the logarithms, with one variance for both sides. Four starts give a wide
    one; that is what four starts know. `fewest` 1 lets one side be started once, where the other
    side's starts tell how far apart starts are. Other starts of b, such as those it was chosen by,
    tell that too, and nothing of its mean.
    """
    starts = len(a_us) + len(b_us)
    means = [math.exp(float(np.log(side).mean())) if len(side) else None for side in (a_us, b_us)]
    few = min(len(a_us), len(b_us)) < fewest or starts + len(other_b_us) < 3
    if few or means[0] is None or means[1] is None:
        missing = "an engine was started once for a side; give each side two starts or more"
        return Estimate(means[0], means[1], None, None, None, starts, steps, (), "", missing)
    sides = (a_us, (*b_us, *other_b_us))
    free = starts + len(other_b_us) - 2
    spread = sum(float(((np.log(side) - np.log(side).mean()) ** 2).sum()) for side in sides)
    error = math.sqrt(spread / free * (1 / len(a_us) + 1 / len(b_us)))
    gain, wide = means[0] / means[1], math.exp(student_quantile(_TAIL, free) * error)
    # With g the gain, a - b is b (g - 1): b's own error is small beside that of g - 1.
    saved = [means[1] * (value - 1) for value in (gain, gain / wide, gain * wide)]
    clock = _CLOCK_US / min(means[0], means[1])
    estimate = Estimate(
        means[0],
        means[1],
        gain=_widened(Interval(gain, gain / wide, gain * wide), gain * clock),
        saved_us=_widened(Interval(*saved), _CLOCK_US),
        detectable=None,
        quads=starts,
        steps=steps,
        dropped=(),
        method=f"Student's t over {starts} engine starts",
        missing="",
        apart=max(max(side) / min(side) for side in sides) - 1,
    )
    return _with_detectable(estimate)


def aa_test(estimate: Estimate, *, captured_again: bool = False) -> AATest:
    """The verdict on a side that was compared with itself.

    Graphs that were captured again lie elsewhere in memory, which may change a time a little,
    steadily, and says nothing against the machine.
    """
    gain = estimate.gain
    if gain is None:
        return AATest(estimate, False, None, f"not known: {estimate.missing}")
    floor = max(abs(gain.low - 1), abs(gain.high - 1))
    figures = f"{gain.value:.4f} (95 % {gain.low:.4f} to {gain.high:.4f})"
    subject = "a against itself captured again" if captured_again else "a against itself"
    if gain.low <= 1 <= gain.high:
        return AATest(estimate, True, floor, f"{subject}: {figures}, no effect")
    why = "so much does another capture change" if captured_again else "the machine was not steady"
    line = (
        f"{subject}: {figures}, which is not 1: {why}, and effects under {floor:.2%} are not told "
        "apart from that"
    )
    return AATest(estimate, False, floor, line)


def why_unknown(estimate: Estimate) -> str:
    """Why nobody can say which effect such a run would find; empty where it is known."""
    if estimate.gain is None:
        return estimate.missing
    if not has_spread(estimate):
        return "the times vary by as much as they are long, or are too short for the clock"
    if estimate.apart is not None:
        return ""
    quads, outliers = estimate.quads, estimate.outliers
    if quads < _FEWEST_FOR_POWER:
        return f"that takes {_FEWEST_FOR_POWER} quads, and {quads} count; give more --seconds"
    if outliers is None and quads < _FEWEST_UNSEEN:
        return "an earlier version of spark-prof wrote this result; run ab again"
    # As many as counted and two standard deviations of such a count more, by Poisson.
    if outliers and outliers + 2 * math.sqrt(outliers) >= int(_TRIMMED * quads):
        return (
            f"{outliers} of {quads} quads were disturbed, and what is found depends on how many "
            "are; give more --seconds"
        )
    return ""


def has_spread(estimate: Estimate) -> bool:
    """Whether there is an interval on a logarithmic scale, which a file may lack."""
    gain, shortest = estimate.gain, min(estimate.a_us or 0.0, estimate.b_us or 0.0)
    if gain is None or not 0 < gain.low <= gain.value <= gain.high < _WIDEST * gain.low:
        return False
    return shortest > _WIDEST * _CLOCK_US and estimate.quads > 2


def spread_of(
    estimate: Estimate, *, itself: bool = False, captured_again: bool = False
) -> GainSpread:
    """How much the gain varies from run to run."""
    gain = estimate.gain
    if gain is None or estimate.a_us is None or estimate.b_us is None:
        raise ValueError("an estimate without a gain has no spread")
    clock = _CLOCK_US / min(estimate.a_us, estimate.b_us)
    by = gain.value * clock
    passed = gain.low <= 1 <= gain.high
    return GainSpread(
        half_width=math.log(max(gain.high - by, gain.value) / min(gain.low + by, gain.value)) / 2,
        free=estimate.quads - (1 if estimate.apart is None else 2),
        wider=1 + _TOO_WIDE / estimate.quads if estimate.apart is None else 1.0,
        clock=clock,
        off=math.log(gain.value) if itself and not passed else 0.0,
        captured_again=captured_again,
    )


def _with_detectable(estimate: Estimate) -> Estimate:
    if why_unknown(estimate):
        return estimate
    return replace(estimate, detectable=minimum_effect(spread_of(estimate)))


def _outliers(ratios: Array, clock: float) -> int:
    """How many are far from the others, by more than their own spread and the clock's."""
    apart = np.abs(ratios - np.median(ratios))
    return int((apart > _FAR * max(1.4826 * float(np.median(apart)), clock)).sum())


def _middle_quads(ranked: Array, drawn: npt.NDArray[np.int64]) -> Array:
    """Both sides' means over the quads in the middle, by their ratio."""
    count = drawn.shape[1]
    cut = int(_TRIMMED * count)
    means: Array = ranked[np.sort(drawn, axis=1)[:, cut : count - cut]].mean(axis=1)
    return means


def _widened(interval: Interval, by: float) -> Interval:
    return Interval(interval.value, interval.low - by, interval.high + by)


def _percentiles(value: float, drawn: Array, quads: int) -> Interval:
    """The interval of resampled values, widened for the number of quads."""
    wide = math.sqrt(quads / (quads - 1)) * student_quantile(_TAIL, quads - 1)
    tail = NormalDist().cdf(-wide)
    low, high = np.quantile(drawn, (tail, 1 - tail)).tolist()
    if low <= drawn.min() or high >= drawn.max():
        # So few quads that the resamples end before the percentile: their deviation does not.
        wide *= float(drawn.std())
        low, high = min(low, value - wide), max(high, value + wide)
    return Interval(value, min(low, value), max(high, value))
