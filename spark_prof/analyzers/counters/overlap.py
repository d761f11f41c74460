"""How long each sampled interval and each kernel ran at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Overlaps:
    """Pairs that overlap, in order of kernel.

    Attributes:
        sample: index of the sampled interval.
        kernel: index of the kernel.
        ns: for how long both lasted.
    """

    sample: Times
    kernel: Times
    ns: Times


def overlaps(begin: Times, finish: Times, start: Times, end: Times) -> Overlaps:
    """All overlapping pairs of samples and kernels.

    Args:
        begin: when each sample began, ascending; samples do not overlap each other.
        finish: when it ended.
        start: when each kernel started; kernels may overlap.
        end: when it ended.
    """
    first = np.searchsorted(finish, start, side="right")
    counts = np.maximum(np.searchsorted(begin, end, side="left") - first, 0)
    kernel = np.repeat(np.arange(len(start)), counts)
    within = np.arange(len(kernel)) - np.repeat(np.cumsum(counts) - counts, counts)
    sample = first[kernel] + within
    ns = np.minimum(finish[sample], end[kernel]) - np.maximum(begin[sample], start[kernel])
    return Overlaps(sample, kernel, ns)


def uncovered(begin: Times, finish: Times, start: Times, end: Times) -> Times:
    """Nanoseconds of each sample in which no kernel ran."""
    if not len(start):
        return finish - begin
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    # Kernels that touch become one stretch, so that nothing is counted twice.
    fresh = np.append(True, start[order][1:] > reach[:-1])
    stretch_start = start[order][fresh]
    stretch_end = np.append(reach[:-1][fresh[1:]], reach[-1])
    found = overlaps(begin, finish, stretch_start, stretch_end)
    busy = np.bincount(found.sample, weights=found.ns, minlength=len(begin))
    return (finish - begin) - busy.astype(np.int64)
