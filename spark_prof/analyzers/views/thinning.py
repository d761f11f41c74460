"""Leaves out points that a picture has no room for, and never its extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def thinned(
    along: npt.NDArray[np.number[Any]], value: npt.NDArray[np.number[Any]], most: int
) -> npt.NDArray[np.int64]:
    """Places of the points to draw: of each stretch of as many points the lowest and the highest.

    Args:
        along: where each point stands on the axis along which stretches are cut.
        value: what it shows.
        most: how many points may be drawn, at least 2.

    Returns:
        Places in ascending order of `along`; all where they are few enough.
    """
    order = np.argsort(along, kind="stable").astype(np.int64)
    if len(order) <= most:
        return order
    stretch = np.arange(len(order)) * (most // 2) // len(order)
    by_value = np.lexsort((value[order], stretch))
    borders = np.flatnonzero(np.diff(stretch)) + 1
    lowest = by_value[np.append(0, borders)]
    highest = by_value[np.append(borders, len(order)) - 1]
    kept: npt.NDArray[np.int64] = order[np.unique(np.concatenate([lowest, highest]))]
    return kept
