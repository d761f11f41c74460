"""How much longer a decode step takes with more tokens in the KV cache, where the data tell it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.analyzers.views.step_series import Steps

_FEWEST = 20
_NARROWEST = 64.0
"""Tokens of context between the shortest and the longest step, below which nothing is fitted."""
_CONFIDENCE = 0.95
_MOST_SIZES = 8


@dataclass(frozen=True)
class ContextFit:
    """A line through the decode steps of one size; slow steps are left out.

    Attributes:
        requests: that decode in each.
        steps: how many there are.
        shortest: tokens of context of a mean request in the step with the fewest.
        longest: in that with the most.
        slope_us: of a step for 1,000 tokens more of each request; None where that is not known.
        within_us: half of the slope's 95 % interval; None without a slope.
        at_shortest_us: what the line says for the shortest context; None without a slope.
        why_not: why there is no slope; empty where there is one.
    """

    requests: int
    steps: int
    shortest: float
    longest: float
    slope_us: float | None = None
    within_us: float | None = None
    at_shortest_us: float | None = None
    why_not: str = ""

    def us_at(self, context: float) -> float | None:
        """What the line says for that context."""
        if self.slope_us is None or self.at_shortest_us is None:
            return None
        return self.at_shortest_us + self.slope_us * (context - self.shortest) / 1000


def context_fits(steps: Steps) -> tuple[ContextFit, ...]:
    """A fit for each batch size, of many sizes for those with the most steps."""
    own = steps.of("decode")
    own = own[(steps.requests[own] > 0) & (steps.context[own] >= 0) & ~steps.slow[own]]
    sizes, counts = np.unique(steps.requests[own], return_counts=True)
    most = np.sort(sizes[np.argsort(-counts, kind="stable")[:_MOST_SIZES]])
    return tuple(
        _fit(int(size), steps.context[chosen], steps.us[chosen])
        for size in most.tolist()
        for chosen in [own[steps.requests[own] == size]]
    )


def _fit(
    requests: int, context: npt.NDArray[np.float64], us: npt.NDArray[np.float64]
) -> ContextFit:
    """Least squares; its error takes into account that neighbouring steps vary together."""
    low, high, count = float(context.min()), float(context.max()), len(us)
    without = ContextFit(requests, count, low, high)
    if count < _FEWEST:
        return _abstained(without, f"only {count} steps")
    if high - low < _NARROWEST:
        return _abstained(without, f"the contexts lie within {high - low:,.0f} tokens")
    centred = context - context.mean()
    squares = float(centred @ centred)
    slope = float(centred @ us) / squares
    left = us - us.mean() - slope * centred
    variance = float(left @ left)
    follows = float(left[1:] @ left[:-1]) / variance if variance else 0.0
    follows = min(max(follows, 0.0), 0.99)
    free = int(count * (1 - follows) / (1 + follows)) - 2
    if free < 2:
        return _abstained(without, "neighbouring steps vary together too much")
    error = math.sqrt(variance / free / squares)
    within = student_quantile((1 + _CONFIDENCE) / 2, free) * error
    if within >= abs(slope):
        return _abstained(without, "the steps scatter more than that changes them")
    return ContextFit(
        requests=requests,
        steps=count,
        shortest=low,
        longest=high,
        slope_us=1000 * slope,
        within_us=1000 * within,
        at_shortest_us=float(us.mean() + slope * (low - context.mean())),
    )


def _abstained(fit: ContextFit, why: str) -> ContextFit:
    return ContextFit(fit.requests, fit.steps, fit.shortest, fit.longest, why_not=why)
