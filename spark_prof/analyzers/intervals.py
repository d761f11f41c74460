"""Sums and unions of time intervals, in integer nanoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.lookup import Integers, ascends

__all__ = ["covered_in", "sum_by_group", "union_by_group"]

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
    """Length of the union of the intervals of each group.

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
    if not ascends(group, start):
        order = np.lexsort((start, group))
        start, end, group = start[order], end[order], group[order]
    first = np.append(True, group[1:] != group[:-1])
    opens = np.flatnonzero(first)
    # Counted from its group's first start, a time stays small however long the recording is.
    origin, length = start[opens], np.diff(np.append(opens, len(start)))
    # No group is as long as the largest number, whatever a damaged one says.
    longest = min(int((np.maximum.reduceat(end, opens) - origin).max()), 1 << 62)
    # A stride longer than any group keeps the running maximum of one group out of the next.
    shift = np.repeat(np.arange(len(opens)) * (longest + 1) - origin, length)
    reached = end + shift
    np.maximum.accumulate(reached, out=reached)
    reached -= shift
    before = np.empty_like(start)
    before[1:] = reached[:-1]
    before[opens] = origin
    added = end - np.maximum(start, before, out=before)
    np.maximum(added, 0, out=added)
    found = np.zeros(groups, np.int64)
    found[group[opens]] = np.add.reduceat(added, opens)
    return found


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
