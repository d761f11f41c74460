"""What contexts of other lengths explain of a difference between decode steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.like import Group
from spark_prof.analyzers.comparing.model import ContextEffect, Side
from spark_prof.analyzers.comparing.noise import stretch_of
from spark_prof.analyzers.student import student_quantile

Floats = npt.NDArray[np.float64]

_FEWEST_STEPS = 16
_DIFFERENT = 0.01
"""Contexts that differ by a smaller share are alike."""


def context_effect(
    sides: tuple[Sequence[Side], Sequence[Side]], groups: Sequence[Group]
) -> ContextEffect | None:
    """How much of the difference the contexts explain; None where they do not differ.

    Within each recording contexts grow while nothing else changes: the slope of the steps' times,
    by least squares over the middle half of the steps of the largest group.

    Args:
        sides: the recordings of the reference and of the other.
        groups: the steps that are compared.
    """
    tokens = [
        float(
            np.mean(
                [
                    _column(each, "context_tokens")[
                        np.concatenate([group.places[side][place] for group in groups])
                    ].mean()
                    for place, each in enumerate(sides[side])
                ]
            )
        )
        for side in (0, 1)
    ]
    more = tokens[1] - tokens[0]
    if not tokens[0] or abs(more) < _DIFFERENT * tokens[0]:
        return None
    largest = max(groups, key=lambda group: min(group.steps(0), group.steps(1)))
    found = [
        [
            _slope(_column(each, "context_tokens")[places], _column(each, "step_us")[places])
            for each, places in zip(sides[side], largest.places[side], strict=True)
        ]
        for side in (0, 1)
    ]
    known = [[slope for slope in slopes if slope is not None] for slopes in found]
    if any(len(some) < len(all_) for some, all_ in zip(known, found, strict=True)):
        return None
    # Both sides count the same, however many recordings each has.
    slope = sum(value / len(some) for some in known for value, _, _ in some) / 2
    error = sum((error / len(some)) ** 2 for some in known for _, error, _ in some) ** 0.5 / 2
    free = min(free for some in known for _, _, free in some)
    wide = student_quantile(0.975, max(int(free), 2)) * error
    ends = sorted((more * (slope - wide), more * (slope + wide)))
    return ContextEffect(tokens[0], tokens[1], slope, more * slope, *ends)


def _column(side: Side, name: str) -> Floats:
    return side.steps[name].to_numpy(np.float64)


def _slope(tokens: Floats, us: Floats) -> tuple[float, float, float] | None:
    """Us a token, its standard error and degrees of freedom; None of too few or equal contexts."""
    order = np.argsort(us, kind="stable")
    cut = len(us) // 10
    middle = np.sort(order[cut : len(us) - cut])
    tokens, us = tokens[middle], us[middle]
    spread = float(((tokens - tokens.mean()) ** 2).sum())
    if len(us) < _FEWEST_STEPS or not spread:
        return None
    slope = float(((tokens - tokens.mean()) * (us - us.mean())).sum()) / spread
    left = us - us.mean() - slope * (tokens - tokens.mean())
    # Neighbours that are alike count as one.
    free = max(len(us) / stretch_of(left) - 2, 1.0)
    variance = float((left**2).sum()) / free / spread
    return slope, variance**0.5, free
