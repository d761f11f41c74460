"""The middle of some steps: the mean over those of middle length, and how sure it is.

A hiccup of the host is among the longest steps and swings nothing, and parts of a step still add up
to it, which medians of parts do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.kernel_time import Charges, Ran
from spark_prof.analyzers.comparing.noise import FEWEST_STEPS, Figure, stretch_of

_RESAMPLES = 200
_SEED = 7


@dataclass(frozen=True, eq=False)
class Middle:
    """Which steps count.

    Attributes:
        steps: the middle half of all steps by length.
        resampled: weights of all steps, one column each time that as many steps were drawn again
            from all of them, and their middle half taken.
    """

    steps: Int64s
    resampled: Floats

    def mean(self, values: Floats) -> Floats:
        """The mean of each row, which holds a value each step."""
        return np.asarray(values[:, self.steps].mean(axis=1), np.float64)

    def error(self, values: Floats) -> Floats:
        """The standard error of each row's mean, by the bootstrap."""
        return np.asarray((values @ self.resampled).std(axis=1), np.float64)


def middle_of(length: Floats, stretch: int = 1) -> Middle:
    """The middle half of steps of these lengths; of fewer than four all.

    Args:
        length: of steps that follow one another.
        stretch: how many neighbours are drawn together, where they are alike.
    """
    count = len(length)
    starts = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, -(-count // stretch)))
    places = (starts[:, :, None] + np.arange(stretch)) % count
    draws = places.reshape(_RESAMPLES, -1)[:, :count]
    resampled = np.zeros((count, _RESAMPLES))
    for column, draw in enumerate(draws):
        chosen = draw[_middle_half(length[draw])]
        resampled[:, column] = np.bincount(chosen, minlength=count) / len(chosen)
    return Middle(np.sort(_middle_half(length)), resampled)


def _middle_half(length: Floats) -> Int64s:
    order = np.argsort(length, kind="stable")
    cut = len(length) // 4
    return order[cut : len(length) - cut].astype(np.int64)


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
