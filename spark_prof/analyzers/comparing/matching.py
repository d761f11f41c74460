"""Compares a statistic of the steps of one phase, like with like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.like import Group, Sizes, groups_of, like_groups
from spark_prof.analyzers.comparing.model import Side, SizeRow
from spark_prof.analyzers.comparing.noise import START, Change, Figure, change, figure_of

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Values:
    """What is compared of the steps of one recording.

    Attributes:
        us: of every step.
        start: by how much engine starts of this kind are taken to differ, as a share.
    """

    us: Floats
    start: float

    def figure(self, places: Int64s, statistic: str = "median") -> Figure:
        """A statistic of some of the steps."""
        return figure_of(self.us[places], statistic, self.start)


BothValues = tuple[Sequence[Values], Sequence[Values]]


@dataclass(frozen=True, eq=False)
class Matched:
    """The steps of one phase of both sides.

    Attributes:
        groups: those that are compared, by size; one group of all where no size is everywhere.
        sizes: every size that occurs.
        alike: whether any size is in all recordings.
        whole: all steps of the phase.
    """

    groups: tuple[Group, ...]
    sizes: tuple[Group, ...]
    alike: bool
    whole: Group

    @property
    def fewest(self) -> int:
        """Steps that are compared of the recording that has the fewest."""
        return min(
            sum(len(group.places[side][place]) for group in self.groups)
            for side in (0, 1)
            for place in range(len(self.whole.places[side]))
        )


def values_of(side: Side, us: Floats) -> Values:
    """The values of the steps of one recording."""
    return Values(us, START[side.report.run.units])


def matched(sides: tuple[Sequence[Side], Sequence[Side]], phase: str) -> Matched | None:
    """The steps of a phase; None where a recording has none."""
    a, b = ([groups_of(each.steps, phase) for each in side] for side in sides)
    if not all((*a, *b)):
        return None
    sizes = like_groups(a, b)
    groups = tuple(group for group in sizes if group.weight)
    every = Group(0, (tuple(map(_all, a)), tuple(map(_all, b))), 1.0)
    return Matched(groups or (every,), sizes, bool(groups), every)


def like_change(found: Matched, values: BothValues, statistic: str = "median") -> Change:
    """The change of a statistic over steps of the same sizes, weighted as on side a.

    Args:
        found: the steps.
        values: of the recordings of each side.
        statistic: median, mean or p99.
    """
    a, b = (
        [
            _weighted(
                [each.figure(group.places[side][place], statistic) for group in found.groups],
                [group.weight for group in found.groups],
            )
            for place, each in enumerate(values[side])
        ]
        for side in (0, 1)
    )
    return change(a, b)


def whole_change(found: Matched, values: BothValues) -> Change:
    """The change of the median over all steps of the phase, as each side ran them."""
    return _medians(found.whole, values)


def size_rows(found: Matched, values: BothValues) -> tuple[SizeRow, ...]:
    """Every size with its change."""
    return tuple(
        SizeRow(
            group.size,
            group.steps(0),
            group.steps(1),
            group.weight,
            _medians(group, values) if all(map(len, sum(group.places, ()))) else None,
        )
        for group in found.sizes
    )


def _medians(group: Group, values: BothValues) -> Change:
    a, b = (
        [each.figure(places) for each, places in zip(values[side], group.places[side], strict=True)]
        for side in (0, 1)
    )
    return change(a, b)


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
