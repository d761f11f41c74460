"""Percentiles of many groups of numbers at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def grouped_percentiles(
    group: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[np.integer[Any]],
    groups: int,
    at: Sequence[float],
) -> npt.NDArray[np.float64]:
    """The percentiles of each group, as numpy.percentile gives them; NaN of a group of none.

    Args:
        group: of each value, from 0.
        values: of any order.
        groups: how many there are.
        at: in per cent.

    Returns:
        A row for each of `at`, a column for each group.
    """
    counts = np.bincount(group, minlength=groups)
    ordered = values[np.lexsort((values, group))]
    first = np.cumsum(counts) - counts
    found = np.full((len(at), groups), np.nan)
    some = counts > 0
    for row, percent in enumerate(at):
        place = (counts[some] - 1) * (percent / 100)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, counts[some] - 1)
        below, above = ordered[first[some] + low], ordered[first[some] + high]
        found[row, some] = below + (above - below) * (place - low)
    return found
