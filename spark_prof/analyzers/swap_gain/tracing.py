"""What tracing adds to the time between kernels, found on one side and taken off both.

A profiler that notes the begin and the end of each kernel holds up the next one. Kernels that start
before the one before them has ended have no such gap, and nothing is taken off them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def tracing_cost(gaps: npt.NDArray[np.int64], excess: float) -> float:
    """The ns that, taken off every gap, make up the excess; no gap loses more than it has.

    Args:
        gaps: all gaps of some steps, in ns.
        excess: by how much these steps together took longer than without tracing, in ns.

    Returns:
        0 without an excess; the longest gap where all gaps together are no more than it.
    """
    lengths = np.sort(gaps[gaps > 0]).astype(np.float64)
    if excess <= 0 or not len(lengths):
        return 0.0
    # With the n shortest gaps gone, the others have lost as much each as the n-th.
    gone = np.append(0.0, np.cumsum(lengths))[:-1]
    left = len(lengths) - np.arange(len(lengths))
    number = int(np.searchsorted(gone + left * lengths, excess))
    if number == len(lengths):
        return float(lengths[-1])
    return float((excess - gone[number]) / left[number])


def without_tracing(gaps: npt.NDArray[np.int64], cost: float) -> Floats:
    """The gaps in ns with that cost taken off, none below 0."""
    if not math.isfinite(cost) or cost < 0:
        raise ValueError(f"{cost} ns is no cost")
    left: Floats = np.maximum(gaps - cost, 0.0)
    return left
