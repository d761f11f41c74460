"""Which steps are compared: those of the same size, weighted as on side a."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.comparing.comparison import Side, SizeRow
from spark_prof.analyzers.comparing.noise import Change, Figure, change, figure_of

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


def like_groups(a: Sequence[Sizes], b: Sequence[Sizes]) -> tuple[Group, ...]:
    """The sizes that occur, those that most of a's steps have first.

    Only the 16 sizes in all recordings that most steps have get a weight.
    """
    nothing = np.zeros(0, np.int64)
    everywhere = set.intersection(*(set(sizes) for sizes in (*a, *b)))
    number = {size: sum(len(sizes[size]) for sizes in a) for size in everywhere}
    shared = sorted(everywhere, key=lambda size: (-number[size], size))[:_MOST_SIZES]
    steps = sum(number[size] for size in shared)

    def each() -> Iterator[Group]:
        for size in sorted(set().union(*a, *b)):
            weight = number[size] / steps if size in shared else 0.0
            found = [tuple(sizes.get(size, nothing) for sizes in side) for side in (a, b)]
            yield Group(size, (found[0], found[1]), weight)

    ranked = sorted(each(), key=lambda group: (-group.steps(0), -group.steps(1), group.size))
    return tuple(ranked)


@dataclass(frozen=True, eq=False)
class Matched:
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


def matched(sides: tuple[Sequence[Side], Sequence[Side]], phase: str) -> Matched | None:
    """The steps of a phase; None where a recording has none."""
    a, b = ([groups_of(each.steps, phase) for each in side] for side in sides)
    if not all((*a, *b)):
        return None
    sizes = like_groups(a, b)
    groups = tuple(group for group in sizes if group.weight)
    every = Group(0, (tuple(map(_all, a)), tuple(map(_all, b))), 1.0)
    return Matched(groups or (every,), sizes, bool(groups), every)


def like_change(found: Matched, sides: Sides, us_of: Times, statistic: str = "median") -> Change:
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


def size_rows(found: Matched, sides: Sides, us_of: Times) -> tuple[SizeRow, ...]:
    """Every size with its change."""
    return tuple(
        SizeRow(
            group.size,
            group.steps(0),
            group.steps(1),
            group.weight,
            median_change(group, sides, us_of) if all(map(len, sum(group.places, ()))) else None,
        )
        for group in found.sizes
    )


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


def _all(groups: Sizes) -> Int64s:
    return np.sort(np.concatenate(list(groups.values())))


def _weighted(figures: Sequence[Figure], weights: Sequence[float]) -> Figure:
    pairs = list(zip(figures, weights, strict=True))
    return Figure(
        value=sum(weight * figure.value for figure, weight in pairs),
        error=sum((weight * figure.error) ** 2 for figure, weight in pairs) ** 0.5,
        free=min(figure.free for figure in figures),
        start=sum(weight * figure.start for figure, weight in pairs),
    )
