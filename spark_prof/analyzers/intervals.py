"""Sums and unions of time intervals, in integer nanoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.lookup import Integers, ascends

Int64s = npt.NDArray[np.int64]


def sum_by_group(start: Int64s, end: Int64s, group: Integers, groups: int) -> Int64s:
    """Summed length of the intervals of each group; the groups are those of `union_by_group`."""
    took = end - start
    if (group < 0).any():
        took, group = took[group >= 0], group[group >= 0]
    if not len(group):
        return np.zeros(groups, np.int64)
    if not ascends(group):
        return np.bincount(group, weights=took, minlength=groups).astype(np.int64)
    opens = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
    found = np.zeros(groups, np.int64)
    found[group[opens]] = np.add.reduceat(took, opens)
    return found


def union_by_group(start: Int64s, end: Int64s, group: Integers, groups: int) -> Int64s:
    """What the intervals of each group add to the union of all intervals.

    An instant in which several ran counts once, for the group of the one that began first: what all
    groups add is the union over the whole time, however much groups overlap each other.

    Args:
        start: starts in ns.
        end: ends in ns.
        group: group of each interval, 0 to groups - 1; below 0 is none.
        groups: number of groups.
    """
    if (group < 0).any():
        mine = np.flatnonzero(group >= 0)
        start, end, group = start[mine], end[mine], group[mine]
    if not len(start):
        return np.zeros(groups, np.int64)
    if not ascends(start):
        order = np.argsort(start, kind="stable")
        start, end, group = start[order], end[order], group[order]
    added = np.empty_like(end)
    added[0] = start[0]
    np.maximum.accumulate(end[:-1], out=added[1:])
    np.maximum(added, start, out=added)
    np.subtract(end, added, out=added)
    np.maximum(added, 0, out=added)
    return sum_by_group(np.zeros_like(added), added, group, groups)


def covered_in(start: Int64s, end: Int64s, begin: Int64s, finish: Int64s) -> Int64s:
    """How much of each window [begin, finish] is covered by any interval."""
    if not len(start):
        return np.zeros(len(begin), np.int64)
    if not ascends(start):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    opens = np.append(0, np.flatnonzero(start[1:] > reached[:-1]) + 1)
    merged_start = start[opens]
    merged_end = np.append(reached[opens[1:] - 1], reached[-1])
    lengths = np.append(0, np.cumsum(merged_end - merged_start))

    def covered_before(moment: Int64s) -> Int64s:
        index = np.searchsorted(merged_start, moment, side="right")
        inside = np.minimum(moment, merged_end[np.maximum(index - 1, 0)])
        partial = inside - merged_start[np.maximum(index - 1, 0)]
        done: Int64s = np.where(index > 0, lengths[np.maximum(index - 1, 0)] + partial, 0)
        return done

    return covered_before(finish) - covered_before(begin)
