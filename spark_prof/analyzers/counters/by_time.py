"""What each single kernel moves, where it is much longer than a sample."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.counters.overlap import overlaps

__all__ = ["LONG", "amounts_by_time"]

LONG = 10
"""A kernel that lasts so many samples loses or gains at most a tenth at its two ends."""


def amounts_by_time(
    begin: npt.NDArray[np.int64],
    finish: npt.NDArray[np.int64],
    sampled: npt.NDArray[np.float64],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """The samples' amounts, divided among the kernels in proportion to the time in each sample.

    NaN for a kernel that lasts fewer than LONG samples, or that the samples do not cover.

    Args:
        begin: when each sample began, ascending.
        finish: when it ended.
        sampled: the quantity in each sample.
        start: when each kernel started.
        end: when it ended.
    """
    if not len(begin):
        return np.full(len(start), np.nan)
    pairs = overlaps(begin, finish, start, end)
    busy = np.bincount(pairs.sample, weights=pairs.ns, minlength=len(begin))
    # At a kernel's ends a sample also holds idle time, which is taken to move nothing.
    part = sampled[pairs.sample] * pairs.ns / np.maximum(busy[pairs.sample], 1)
    amount = np.bincount(pairs.kernel, weights=part, minlength=len(start))
    covered = np.bincount(pairs.kernel, weights=pairs.ns, minlength=len(start))
    duration = end - start
    long = duration >= LONG * np.median(finish - begin)
    found: npt.NDArray[np.float64] = np.where(long & (covered == duration), amount, np.nan)
    return found
