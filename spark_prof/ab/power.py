"""When an effect is claimed, and the smallest one that four runs out of five claim.

`claimed` and `floor` are the rule. Reports call them with the intervals of a run, `minimum_effect`
with those of simulated runs, so that what is printed has the power that it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.student import student_quantile

CAPTURES_APART = 0.002
"""By what share two captures of the same kernels differ at most, steadily: 0.03 to 0.2 % on H100s
(benchmarks/results/ab). Side b is always another capture than a."""
_POWER = 0.8
_DRAWS = 20_000
_SEED = 20251122
_HALVINGS = 14
_LARGEST = 1e6

Array = npt.NDArray[np.float64]
Values = Any
"""A number, or an array with one for each simulated run."""


@dataclass(frozen=True)
class Spread:
    """How much a measured gain varies from run to run.

    Attributes:
        half_width: of its 95 % interval, as a logarithm, without the clock's share.
        free: degrees of freedom on which that width rests.
        wider: how many times wider than Student's t would have it that interval is.
        clock: by what share of the gain the clock's resolution widens either end.
        off: logarithm of the gain around which runs lie.
        captured_again: the second side has CUDA graphs of its own.
    """

    half_width: float
    free: int
    wider: float = 1.0
    clock: float = 0.0
    off: float = 0.0
    captured_again: bool = False


def claimed(low: Values, high: Values, floor: Values) -> tuple[Values, Values]:
    """Whether b is faster, and whether it is slower: the whole interval lies beyond the floor.

    Args:
        low: end of the gain's interval.
        high: its other end.
        floor: of the tests of a against itself, the largest; 0 without one.
    """
    return low > 1 + floor, high * (1 + floor) < 1


def floor(passed: Values, reach: Values, captured_again: bool) -> Values:
    """The share below which a test of a against itself forbids to claim an effect.

    None where it passed: the interval of the gain already holds what varies from quad to quad.

    Args:
        passed: its interval contains 1.
        reach: how far from 1 that goes.
        captured_again: a was compared with another capture of itself.
    """
    least = CAPTURES_APART if captured_again else 0.0
    return np.where(passed, least, np.maximum(reach, least))


def minimum_effect(run: Spread, tests: Sequence[Spread] = ()) -> float:
    """The effect, as a share, that four of five runs like this one claim.

    Runs are simulated, each with an interval and tests of its own, as of a normal gain whose
    variance has to be estimated. The width that was found counts as the median of such widths.
    So runs print this effect too high as often as too low, and their median has the power.

    Args:
        run: of the gain.
        tests: of side a against itself, that count for the run.
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


def _intervals(spread: Spread, place: int) -> tuple[Array, Array]:
    """Both ends of the interval in each simulated run, around a gain of exp(off)."""
    scale, deviation = _draws(spread.free, place)
    error = spread.half_width / (spread.wider * student_quantile(0.975, spread.free))
    gain = np.exp(spread.off + error * deviation)
    wide = np.exp(spread.half_width * scale)
    return gain * (1 / wide - spread.clock), gain * (wide + spread.clock)


@lru_cache(maxsize=64)
def _draws(free: int, place: int) -> tuple[Array, Array]:
    """Estimates of a standard deviation, of median 1, and deviations in units of that."""
    random = np.random.default_rng((_SEED, place))
    scale = np.sqrt(random.chisquare(free, _DRAWS) / free)
    typical = float(np.median(scale))
    return scale / typical, random.standard_normal(_DRAWS) / typical
