"""Compares the steps of one phase, those of the same size weighted as on side a."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.comparing.comparison import ContextEffect, PhaseComparison, Side, SizeRow
from spark_prof.analyzers.comparing.kernel_time import Charges, steps_of_size
from spark_prof.analyzers.comparing.noise import Change, Figure, change, figure_of, stretch_of
from spark_prof.analyzers.comparing.parts import (
    Taken,
    conversions_figure,
    kernel_parts,
    layer_parts,
    step_parts,
    typical_figure,
)
from spark_prof.analyzers.t_distribution import student_quantile

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Sizes = dict[int, Int64s]
Sides = tuple[Sequence[Side], Sequence[Side]]
"""The recordings of the reference and of the other."""

Times = Callable[[Side], Floats]
"""A time of every step of a recording."""

SIZES = {"decode": "decode_requests", "prefill": "prefill_tokens", "unknown": ""}
"""The column that says how large a step of each phase is; steps of unknown phase have no size."""

_MOST_SIZES = 16


@dataclass(frozen=True, eq=False)
class Group:
    """Steps of one size."""

    size: int  # requests that decode, or prompt tokens; 0 where nothing tells
    places: tuple[tuple[Int64s, ...], tuple[Int64s, ...]]
    """Of the steps, in order: of both sides, of each recording."""
    weight: float  # their share in the comparison, 0 where a recording has none

    def steps(self, side: int) -> int:
        """How many one side has, all of its recordings together."""
        return sum(map(len, self.places[side]))


def groups_of(steps: pd.DataFrame, phase: str) -> Sizes:
    """The steps of a phase by their size, as places in order."""
    places = np.flatnonzero(steps["phase"].astype(str).to_numpy() == phase)
    if not SIZES[phase]:
        return {0: places} if len(places) else {}
    size = steps[SIZES[phase]].to_numpy(np.int64)[places]
    return {int(each): places[size == each] for each in np.unique(size)}


def matching_groups(a: Sequence[Sizes], b: Sequence[Sizes]) -> tuple[Group, ...]:
    """The sizes that occur, those that most of a's steps have first.

    Only the 16 sizes in all recordings that most steps have get a weight.
    """
    nothing = np.zeros(0, np.int64)
    everywhere = set.intersection(*(set(sizes) for sizes in (*a, *b)))
    number = {size: sum(len(sizes[size]) for sizes in a) for size in everywhere}
    shared = sorted(everywhere, key=lambda size: (-number[size], size))[:_MOST_SIZES]
    steps = sum(number[size] for size in shared)

    found = [
        Group(
            size,
            (
                tuple(sizes.get(size, nothing) for sizes in a),
                tuple(sizes.get(size, nothing) for sizes in b),
            ),
            number[size] / steps if size in shared else 0.0,
        )
        for size in set().union(*a, *b)
    ]
    return tuple(sorted(found, key=lambda group: (-group.steps(0), -group.steps(1), group.size)))


@dataclass(frozen=True, eq=False)
class MatchingSteps:
    """The steps of one phase of both sides."""

    groups: tuple[Group, ...]
    """Those that are compared, by size; one group of all where no size is everywhere."""
    sizes: tuple[Group, ...]  # every size that occurs
    alike: bool  # whether any size is in all recordings
    whole: Group  # all steps of the phase

    @property
    def fewest(self) -> int:
        """Steps that are compared of the recording that has the fewest."""
        return min(
            sum(len(group.places[side][place]) for group in self.groups)
            for side in (0, 1)
            for place in range(len(self.whole.places[side]))
        )


def matching_steps(sides: Sides, phase: str) -> MatchingSteps | None:
    """The steps of a phase; None where a recording has none."""
    a, b = ([groups_of(each.steps, phase) for each in side] for side in sides)
    if not all((*a, *b)):
        return None
    sizes = matching_groups(a, b)
    groups = tuple(group for group in sizes if group.weight)

    def whole(side: Sequence[Sizes]) -> tuple[Int64s, ...]:
        return tuple(np.sort(np.concatenate(list(each.values()))) for each in side)

    every = Group(0, (whole(a), whole(b)), 1.0)
    return MatchingSteps(groups or (every,), sizes, bool(groups), every)


def matched_change(
    found: MatchingSteps, sides: Sides, us_of: Times, statistic: str = "median"
) -> Change:
    """The change of a statistic over steps of the same sizes, weighted as on side a."""
    weights = [group.weight for group in found.groups]
    figures = [_figures(group, sides, us_of, statistic) for group in found.groups]
    a, b = (
        [_weighted(own, weights) for own in zip(*(each[side] for each in figures), strict=True)]
        for side in (0, 1)
    )
    return change(a, b)


def median_change(group: Group, sides: Sides, us_of: Times) -> Change:
    """The change of the median over all steps of a group, as each side ran them."""
    return change(*_figures(group, sides, us_of, "median"))


def _figures(
    group: Group, sides: Sides, us_of: Times, statistic: str
) -> tuple[list[Figure], list[Figure]]:
    a, b = (
        [
            figure_of(us_of(each)[places], statistic, each.start)
            for each, places in zip(recordings, group.places[side], strict=True)
        ]
        for side, recordings in enumerate(sides)
    )
    return a, b


def _weighted(figures: Sequence[Figure], weights: Sequence[float]) -> Figure:
    pairs = list(zip(figures, weights, strict=True))
    return Figure(
        value=sum(weight * figure.value for figure, weight in pairs),
        error=sum((weight * figure.error) ** 2 for figure, weight in pairs) ** 0.5,
        free=min(figure.free for figure in figures),
        start=sum(weight * figure.start for figure, weight in pairs),
    )


_FEWEST_STEPS = 16
_DIFFERENT = 0.01
"""Contexts that differ by a smaller share are alike."""


def context_effect(sides: Sides, groups: Sequence[Group]) -> ContextEffect | None:
    """How much of the difference the contexts explain; None where they do not differ.

    Within each recording contexts grow while nothing else changes: the slope of the steps' times,
    by least squares over the middle half of the steps of the largest group.
    """

    def mean_tokens(place: int) -> float:
        own = zip(sides[place], *(group.places[place] for group in groups), strict=True)
        steps = ((_column(each, "context_tokens"), np.concatenate(at)) for each, *at in own)
        return float(np.mean([tokens[at].mean() for tokens, at in steps]))

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
    found = matching_steps(sides, phase)
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

    like = matched_change(found, sides, length_us)
    one_size = found.alike and len(found.sizes) == 1
    whole = like if one_size else median_change(found.whole, sides, length_us)
    a, b = (
        [taken(letter, place, each) for place, each in enumerate(side)]
        for letter, side in enumerate(sides)
    )
    typical, conversions = (
        change([of(each) for each in a], [of(each) for each in b])
        for of in (typical_figure, conversions_figure)
    )
    return PhaseComparison(
        phase=phase,
        unit="prompt token" if by_token else "step",
        whole=whole,
        like=like,
        mix_us=whole.us - like.us,
        sizes=tuple(
            SizeRow(
                group.size,
                group.steps(0),
                group.steps(1),
                group.weight,
                median_change(group, sides, length_us)
                if all(map(len, sum(group.places, ())))
                else None,
            )
            for group in found.sizes
        ),
        alike=found.alike,
        fewest=found.fewest,
        typical=typical,
        parts=step_parts(a, b),
        residual_us=like.us - typical.us,
        conversions=conversions,
        layers=layer_parts(a, b, whole=True),
        layer_parts=layer_parts(a, b),
        kernels=kernel_parts(a, b),
        context=context_effect(sides, found.groups) if phase == "decode" and found.alike else None,
    )
