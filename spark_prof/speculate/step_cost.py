"""What a step takes by its number of drafts, over rounds each of which has measured them all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.speculate.acceptance import TokensSpread

_HALF = 0.975  # both ends of a 95 % interval
_FEWEST_ROUNDS = 3

Round = Mapping[int, float]
"""The time of a step in us by its number of drafts; 0 is an engine without a drafter."""


@dataclass(frozen=True)
class StepCost:
    """A value and its 95 % interval, without ends where too few rounds tell one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Fit:
    """A step takes ``fixed_us + drafts * each_us`` from one draft on."""

    fixed_us: StepCost
    each_us: StepCost
    worst: float  # the largest share by which a measured step is off this line


def measured_drafts(rounds: Sequence[Round]) -> tuple[int, ...]:
    """The numbers of drafts that most rounds have measured."""
    counts = Counter(drafts for times in rounds for drafts in times)
    return tuple(sorted(drafts for drafts, count in counts.items() if 2 * count > len(rounds)))


def step_us(rounds: Sequence[Round], width: float) -> StepCost | None:
    """The time of a step with so many drafts, and its interval; None where none was measured.

    Of a width between two that were measured, which a drafter has that finds fewer drafts at
    times, it lies on the line between them.
    """
    values = [us for times in rounds if (us := _at(times, width)) is not None]
    return mean_interval(values) if values else None


def step_spread(
    rounds: Sequence[Round], width: float, other: float
) -> tuple[float, TokensSpread] | None:
    """The logarithm of the ratio of two steps' times, and how sure it is; in the same rounds."""
    pairs = [(_at(times, width), _at(times, other)) for times in rounds]
    logs = [math.log(a / b) for a, b in pairs if a and b]
    if not logs:
        return None
    if width == other:
        return 0.0, TokensSpread()
    if len(logs) < _FEWEST_ROUNDS:
        return fmean(logs), TokensSpread(math.inf, 1)
    return fmean(logs), TokensSpread(float(np.var(logs, ddof=1)) / len(logs), len(logs) - 1)


def mean_interval(values: Sequence[float]) -> StepCost:
    """The mean of values and its 95 % interval by Student's t; no interval of one or two values."""
    middle = fmean(values)
    if len(values) < _FEWEST_ROUNDS:
        return StepCost(middle)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = student_quantile(_HALF, len(values) - 1) * error
    return StepCost(middle, middle - half, middle + half)


def fit_line(rounds: Sequence[Round]) -> Fit | None:
    """The line through the steps with drafts, one a round; None of fewer than two numbers."""
    drafts = [count for count in measured_drafts(rounds) if count >= 1]
    rounds = [times for times in rounds if times.keys() >= set(drafts)]
    if len(drafts) < 2 or not rounds:
        return None
    lines = [np.polyfit(drafts, [times[count] for count in drafts], 1) for times in rounds]
    each_us = mean_interval([float(line[0]) for line in lines])
    fixed_us = mean_interval([float(line[1]) for line in lines])
    means = {count: fmean(times[count] for times in rounds) for count in drafts}
    off = (
        abs(fixed_us.value + count * each_us.value - us) / us for count, us in means.items() if us
    )
    return Fit(fixed_us, each_us, max(off, default=0.0))


def _at(times: Round, width: float) -> float | None:
    """The time at a width, on the line between the two nearest that were measured."""
    if width in times:
        return times[int(width)]
    lower = [count for count in times if count < width]
    upper = [count for count in times if count > width]
    if not lower or not upper:
        return None
    low, high = max(lower), min(upper)
    share = (width - low) / (high - low)
    return times[low] * (1 - share) + times[high] * share
