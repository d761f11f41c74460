"""A typical step: the mean over those of middle length, in parts that add up, each with its error.

A hiccup of the host is among the longest steps and swings nothing, and parts of a step still add up
to it, which medians of parts do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.kernel_time import Charges, KernelTime
from spark_prof.analyzers.comparing.noise import FEWEST_STEPS, Figure, stretch_of

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_RESAMPLES = 200
_SEED = 7


@dataclass(frozen=True, eq=False)
class TypicalStep:
    """Which steps count."""

    steps: Int64s  # the middle half of all steps by length
    resampled: Floats
    """Weights of all steps, one column each time that as many steps were drawn again from all of
    them, and their middle half taken."""

    def mean(self, values: Floats) -> Floats:
        """The mean of each row, which holds a value each step."""
        return np.asarray(values[:, self.steps].mean(axis=1), np.float64)

    def error(self, values: Floats) -> Floats:
        """The standard error of each row's mean, by the bootstrap."""
        return np.asarray((values @ self.resampled).std(axis=1), np.float64)


def typical_step(length: Floats, stretch: int = 1) -> TypicalStep:
    """The middle half of steps of these lengths; of fewer than four all."""
    count = len(length)
    starts = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, -(-count // stretch)))
    places = (starts[:, :, None] + np.arange(stretch)) % count
    draws = places.reshape(_RESAMPLES, -1)[:, :count]
    resampled = np.zeros((count, _RESAMPLES))
    for column, draw in enumerate(draws):
        chosen = draw[_middle_half(length[draw])]
        resampled[:, column] = np.bincount(chosen, minlength=count) / len(chosen)
    return TypicalStep(np.sort(_middle_half(length)), resampled)


def _middle_half(length: Floats) -> Int64s:
    order = np.argsort(length, kind="stable")
    cut = len(length) // 4
    return order[cut : len(length) - cut].astype(np.int64)


_MOST_STEPS = 1024
"""Steps of one size that are taken apart, in runs that are spread over the recording."""
_RUN = 128


@dataclass(frozen=True, eq=False)
class SizedSteps:
    """Steps of one size of one side, and which of them are typical."""

    time: KernelTime
    typical: TypicalStep
    weight: float  # their share in the comparison
    divisor: Floats  # what each step's times are divided by: 1, or its prompt tokens
    free: float  # degrees of freedom of errors


def steps_of_size(charges: Charges, chosen: Int64s, weight: float, divisor: Floats) -> SizedSteps:
    """The typical ones of some steps."""
    chosen = _spread(chosen)
    time = charges.of(chosen)
    length = time.length_us / divisor[chosen]
    stretch = stretch_of(length)
    free = max(len(chosen) / stretch - 1, 1.0)
    return SizedSteps(time, typical_step(length, stretch), weight, divisor[chosen], free)


def figures(
    typical: Sequence[SizedSteps],
    tables: Sequence[Floats],
    floors: Callable[[Floats], Floats],
    start: float,
) -> list[Figure]:
    """The figure of each row over groups of steps of several sizes.

    Args:
        typical: of the groups.
        tables: of each group the rows by step, as `KernelTime.table` makes them.
        floors: from the figures to their own standard deviations from recording to recording.
        start: by how much engine starts are taken to differ, as a share of all figures alike.
    """
    value = sum(
        each.weight * each.typical.mean(table / each.divisor)
        for each, table in zip(typical, tables, strict=True)
    )
    variance = sum(
        (each.weight * each.typical.error(table / each.divisor)) ** 2
        for each, table in zip(typical, tables, strict=True)
    )
    free = min(each.free for each in typical)
    unknown = min(each.time.steps for each in typical) < FEWEST_STEPS
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
