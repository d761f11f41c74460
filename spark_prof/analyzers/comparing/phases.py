"""Compares the steps of one phase: like with like, then what typical steps are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.comparison import ContextEffect, PhaseComparison, Side
from spark_prof.analyzers.comparing.kernel_time import Charges
from spark_prof.analyzers.comparing.matching_steps import (
    Group,
    Sides,
    like_change,
    matched,
    median_change,
    size_rows,
)
from spark_prof.analyzers.comparing.noise import stretch_of
from spark_prof.analyzers.comparing.parts import (
    Taken,
    conversions_change,
    kernel_parts,
    layer_parts,
    step_parts,
    typical_change,
    whole_layers,
)
from spark_prof.analyzers.comparing.typical_step import steps_of_size
from spark_prof.analyzers.t_distribution import student_quantile

Floats = npt.NDArray[np.float64]

_FEWEST_STEPS = 16
_DIFFERENT = 0.01
"""Contexts that differ by a smaller share are alike."""


def context_effect(sides: Sides, groups: Sequence[Group]) -> ContextEffect | None:
    """How much of the difference the contexts explain; None where they do not differ.

    Within each recording contexts grow while nothing else changes: the slope of the steps' times,
    by least squares over the middle half of the steps of the largest group.
    """

    def mean_tokens(side: int) -> float:
        return float(
            np.mean(
                [
                    _column(each, "context_tokens")[np.concatenate(places)].mean()
                    for each, *places in zip(
                        sides[side], *(group.places[side] for group in groups), strict=True
                    )
                ]
            )
        )

    tokens = mean_tokens(0), mean_tokens(1)
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


def compare_phase(
    sides: Sides, charges: tuple[Sequence[Charges], Sequence[Charges]], phase: str
) -> PhaseComparison | None:
    """The comparison of one phase; None where a recording has no such step."""
    found = matched(sides, phase)
    if found is None:
        return None
    # Prompts of other lengths are comparable by the token only.
    by_token = phase == "prefill" and not found.alike
    stable = charges[1][-1].stable

    def divisor(side: Side) -> Floats:
        tokens = _column(side, "prefill_tokens")
        return np.maximum(tokens, 1.0) if by_token else np.ones(len(tokens))

    def length_us(side: Side) -> Floats:
        return _column(side, "step_us") / divisor(side)

    def taken(letter: int, place: int, side: Side) -> Taken:
        own = charges[letter][place]
        typical = [
            steps_of_size(own, group.places[letter][place], group.weight, divisor(side))
            for group in found.groups
        ]
        # Of several names that mean the same the first one is shown.
        pairs = zip(own.names[::-1].tolist(), own.kernels.names[::-1], strict=True)
        return Taken(typical, side.report, side.start, stable, dict(pairs))

    like = like_change(found, sides, length_us)
    one_size = found.alike and len(found.sizes) == 1
    whole = like if one_size else median_change(found.whole, sides, length_us)
    a, b = (
        [taken(letter, place, each) for place, each in enumerate(side)]
        for letter, side in enumerate(sides)
    )
    typical = typical_change(a, b)
    return PhaseComparison(
        phase=phase,
        unit="prompt token" if by_token else "step",
        whole=whole,
        like=like,
        mix_us=whole.us - like.us,
        sizes=size_rows(found, sides, length_us),
        alike=found.alike,
        fewest=found.fewest,
        typical=typical,
        parts=step_parts(a, b),
        residual_us=like.us - typical.us,
        conversions=conversions_change(a, b),
        layers=whole_layers(a, b),
        layer_parts=layer_parts(a, b),
        kernels=kernel_parts(a, b),
        context=context_effect(sides, found.groups) if phase == "decode" and found.alike else None,
    )
