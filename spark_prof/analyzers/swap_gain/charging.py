"""Charges every instant to one kernel, so that overlap is never counted twice.

In the order in which kernels start, each is charged what it adds to the time in which anything
runs. One that starts early and waits for the one before it (programmatic dependent launch) is
charged from that one's end on, and one that runs beside a longer one on another stream nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Charged:
    """What each kernel is charged, in the order of the arguments.

    Attributes:
        busy: of its run, the time since all before had ended, in ns.
        gap: how long nothing ran before it, in ns.
    """

    busy: Int64s
    gap: Int64s


def charge(start: Int64s, end: Int64s) -> Charged:
    """The charges, which add up to the time from the first start to the last end.

    Args:
        start: ns, ascending.
        end: ns; one before its start counts as that.
    """
    end = np.maximum(end, start)
    reached = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    busy = np.maximum(end - np.maximum(start, reached), 0)
    return Charged(busy, np.maximum(start - reached, 0))
