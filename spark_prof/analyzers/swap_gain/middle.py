"""The middle of some steps: the mean over those of middle length, and how sure it is.

A hiccup of the host is among the longest steps and swings nothing, and parts of a step still add up
to it, which medians of parts do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

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
