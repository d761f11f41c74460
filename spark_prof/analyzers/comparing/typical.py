"""A typical step of one side: parts that add up, each with its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.noise import FEWEST_STEPS, Figure, stretch_of
from spark_prof.analyzers.comparing.ran import Charges, Ran
from spark_prof.analyzers.swap_gain.middle import Middle, middle_of

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_STEPS = 1024
"""Steps of one size that are taken apart, in runs that are spread over the recording."""
_RUN = 128


@dataclass(frozen=True, eq=False)
class Typical:
    """Steps of one size of one side, and which of them are typical.

    Attributes:
        ran: what ran in them.
        middle: those of middle length.
        weight: their share in the comparison.
        divisor: what each step's times are divided by: 1, or its prompt tokens.
        free: degrees of freedom of errors.
    """

    ran: Ran
    middle: Middle
    weight: float
    divisor: Floats
    free: float


def typical_of(charges: Charges, chosen: Int64s, weight: float, divisor: Floats) -> Typical:
    """The typical ones of some steps.

    Args:
        charges: of a side.
        chosen: places of the steps, in order; at least one.
        weight: their share in the comparison.
        divisor: of every step of the side.
    """
    chosen = _spread(chosen)
    ran = charges.of(chosen)
    length = ran.length_us / divisor[chosen]
    stretch = stretch_of(length)
    free = max(len(chosen) / stretch - 1, 1.0)
    return Typical(ran, middle_of(length, stretch), weight, divisor[chosen], free)


def figures(
    typical: Sequence[Typical],
    tables: Sequence[Floats],
    floors: Callable[[Floats], Floats],
    start: float,
) -> list[Figure]:
    """The figure of each row over groups of steps of several sizes.

    Args:
        typical: of the groups.
        tables: of each group the rows by step, as `Ran.table` makes them.
        floors: from the figures to their own standard deviations from recording to recording.
        start: by how much engine starts are taken to differ, as a share of all figures alike.
    """
    value = sum(
        each.weight * each.middle.mean(table / each.divisor)
        for each, table in zip(typical, tables, strict=True)
    )
    variance = sum(
        (each.weight * each.middle.error(table / each.divisor)) ** 2
        for each, table in zip(typical, tables, strict=True)
    )
    free = min(each.free for each in typical)
    unknown = min(len(each.ran.length_us) for each in typical) < FEWEST_STEPS
    return [
        Figure(
            float(mean),
            math.inf if unknown else float(error),
            free,
            float(floor),
            start * float(mean),
        )
        for mean, error, floor in zip(
            np.asarray(value), np.sqrt(variance), floors(np.asarray(value)), strict=True
        )
    ]


def _spread(chosen: Int64s) -> Int64s:
    if len(chosen) <= _MOST_STEPS:
        return chosen
    starts = np.linspace(0, len(chosen) - _RUN, _MOST_STEPS // _RUN).astype(np.int64)
    spread: Int64s = chosen[(starts[:, None] + np.arange(_RUN)).ravel()]
    return spread
