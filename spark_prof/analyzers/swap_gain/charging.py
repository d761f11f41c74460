"""Charges every instant to one kernel, so that overlap is never counted twice.

In the order in which kernels end, each is charged the time since the one before it ended. A kernel
that starts early and waits for the one before it (programmatic dependent launch), or that runs
beside a longer one on another stream, is charged only what it adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Charged", "charge_by_end"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Charged:
    """What each kernel is charged, in the order in which they end.

    Attributes:
        order: which kernel each is.
        busy: of its charge, the time in which it or one that ends later ran, in ns.
        gap: the rest, in which nothing ran, in ns.
    """

    order: Int64s
    busy: Int64s
    gap: Int64s


def charge_by_end(start: Int64s, end: Int64s) -> Charged:
    """The charges, which add up to the time from the first start to the last end.

    Args:
        start: ns, in any order.
        end: ns; one before its start counts as that.
    """
    end = np.maximum(end, start)
    order = np.lexsort((start, end))
    start, end = start[order], end[order]
    # When all before have ended, nothing runs until the earliest of the others starts.
    opens = np.minimum.accumulate(start[::-1])[::-1]
    before = np.append(opens[:1], end[:-1])
    gap = np.maximum(opens - before, 0)
    return Charged(order, end - before - gap, gap)
