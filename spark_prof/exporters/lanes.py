"""Puts intervals that overlap on lanes of their own.

Perfetto drops a complete event that begins inside another one of its track and ends after it:
with programmatic dependent launch kernels of one stream do. Within a lane no two intervals do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_LOOKED_AT = 64
"""Lanes that are tried for an interval, the newest; a damaged trace may need a million of them."""


def lanes(start: Int64s, end: Int64s, *, nested: bool = False) -> Int64s:
    """The lane of each interval, 0 for the first; an interval takes a low one that is free.

    Args:
        start: starts in ns, sorted; where `nested`, those that are equal by falling end.
        end: ends in ns.
        nested: an interval may lie inside another one of its lane, as a call inside a call.
    """
    found = np.zeros(len(start), np.int64)
    if (start[1:] >= end[:-1]).all():
        return found
    open_ends: list[list[int]] = []
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for lane in range(max(len(open_ends) - _LOOKED_AT, 0), len(open_ends)):
            stack = open_ends[lane]
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or (nested and finish <= stack[-1]):
                stack.append(finish)
                found[index] = lane
                break
        else:
            found[index] = len(open_ends)
            open_ends.append([finish])
    return found
