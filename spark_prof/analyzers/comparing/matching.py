"""Compares a statistic of the steps of one phase, like with like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.like import Group, groups_of, like_groups
from spark_prof.analyzers.comparing.model import Side, SizeRow
from spark_prof.analyzers.comparing.noise import FLOORS, Change, Figure, change, figure_of

__all__ = ["Matched", "floors_of", "like_change", "matched", "size_rows", "whole_change"]

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Matched:
    """The steps of one phase of both sides.

    Attributes:
        groups: those that are compared, by size; one group of all where no size is on both sides.
        sizes: every size that occurs.
        alike: whether any size is on both sides.
        every: places of all steps of the phase, of each side.
    """

    groups: tuple[Group, ...]
    sizes: tuple[Group, ...]
    alike: bool
    every: tuple[Int64s, Int64s]


def floors_of(sides: tuple[Side, Side]) -> tuple[float, float]:
    """How much recordings of each side's kind differ from start to start, as a share."""
    return FLOORS[sides[0].report.run.units], FLOORS[sides[1].report.run.units]


def matched(sides: tuple[Side, Side], phase: str) -> Matched | None:
    """The steps of a phase; None where a side has none."""
    a, b = (groups_of(side.steps, phase) for side in sides)
    if not a or not b:
        return None
    sizes = like_groups(a, b)
    groups = tuple(group for group in sizes if group.weight)
    every = _all(a), _all(b)
    return Matched(groups or (Group(0, *every, 1.0),), sizes, bool(groups), every)


def like_change(
    found: Matched,
    values: tuple[Floats, Floats],
    floors: tuple[float, float],
    statistic: str = "median",
) -> Change:
    """The change of a statistic over steps of the same sizes, weighted as on side a.

    Args:
        found: the steps.
        values: of every step of each side.
        floors: of both sides.
        statistic: median, mean or p99.
    """
    groups = found.groups
    weights = [group.weight for group in groups]
    a = [figure_of(values[0][group.a], statistic, floors[0]) for group in groups]
    b = [figure_of(values[1][group.b], statistic, floors[1]) for group in groups]
    return change(_weighted(a, weights), _weighted(b, weights))


def whole_change(
    found: Matched, values: tuple[Floats, Floats], floors: tuple[float, float]
) -> Change:
    """The change of the median over all steps of the phase, as each side ran them."""
    a, b = (
        figure_of(each[places], "median", floor)
        for each, places, floor in zip(values, found.every, floors, strict=True)
    )
    return change(a, b)


def size_rows(
    found: Matched, values: tuple[Floats, Floats], floors: tuple[float, float]
) -> tuple[SizeRow, ...]:
    """Every size with its change."""
    return tuple(_size_row(group, values, floors) for group in found.sizes)


def _size_row(group: Group, values: tuple[Floats, Floats], floors: tuple[float, float]) -> SizeRow:
    median = None
    if len(group.a) and len(group.b):
        median = change(
            figure_of(values[0][group.a], "median", floors[0]),
            figure_of(values[1][group.b], "median", floors[1]),
        )
    return SizeRow(group.size, len(group.a), len(group.b), group.weight, median)


def _all(groups: dict[int, Int64s]) -> Int64s:
    return np.sort(np.concatenate(list(groups.values())))


def _weighted(figures: Sequence[Figure], weights: Sequence[float]) -> Figure:
    pairs = list(zip(figures, weights, strict=True))
    return Figure(
        value=sum(weight * figure.value for figure, weight in pairs),
        error=sum((weight * figure.error) ** 2 for figure, weight in pairs) ** 0.5,
        free=min(figure.free for figure in figures),
        floor=sum(weight * figure.floor for figure, weight in pairs),
    )
