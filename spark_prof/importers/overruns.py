"""Finds kernels and copies that outlast several which ran after them on their stream.

Work of one stream runs in order, so that such a record cannot be. A programmatic dependent launch
overlaps with the next one or two and ends after them. Streams that are no queues tell themselves
apart: in them much overlaps, and nothing is found. In a graph, whose branches may share a stream's
number, and on AMD GPUs, where streams share a hardware queue, a record has to be many times longer
than other calls of its kernel, too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import classify
from spark_prof.analyzers.lookup import NameColumn, copies_in
from spark_prof.arrays import Flags, Int64s
from spark_prof.traces.foreign import Window

_FAR_NS = 1 << 61  # times beyond it are cut down to it: differences stay numbers
_ROUNDED_NS = 2_000  # times of old traces are whole microseconds
_FEWEST_OUTLASTED = 3
_LONG_TIMES = 5  # times the median of a kernel's calls
_FEWEST_CALLS = 3  # other calls that tell how long a kernel takes
_MOST_OVERRUNS = 0.1  # of a stream's records; where more overrun the stream is no queue
_MOST_OVERLAPS = 0.02  # the same of records that overlap the one before without outlasting it
_OVERLAP_NS = 5_000
_PASSES = 8  # records within records within records


def times_of(frame: pd.DataFrame) -> tuple[Int64s, Int64s]:
    """Starts and ends, none so far away that their difference is no number."""
    start, end = (frame[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    return np.clip(start, -_FAR_NS, _FAR_NS), np.clip(end, -_FAR_NS, _FAR_NS)


def overruns(window: Window, sound: Flags, *, amd: bool) -> Flags:
    """Which rows of a window's GPU work outlast at least three that began later on their stream.

    Args:
        sound: the rows to look at.
        amd: whether it is an AMD GPU, whose streams share queues.
    """
    gpu = window.trace.gpu
    overlong = np.zeros(len(gpu), bool)
    start, end = times_of(gpu)
    sound_rows = np.flatnonzero(sound)
    if not (_owners(end[sound_rows]) >= 0).any():
        return overlong
    inside = window.in_graphs()
    weak = amd | copies_in(gpu) | (gpu["stream"].to_numpy() <= 0)
    long = _longer_than_usual(gpu, end - start)
    graph = np.where(inside, np.maximum(gpu["correlation"].to_numpy(np.int64), 0), -1)
    for rows in rows_of_streams(gpu, sound_rows):
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        overlong[_of_queue(rows, start, end, weak, long, graph)] = True
    return overlong


def _of_queue(
    rows: Int64s, start: Int64s, end: Int64s, weak: Flags, long: Flags, graph: Int64s
) -> Int64s:
    """Which rows of a stream overrun, in order of start; none where it is no queue."""
    left = rows
    for _ in range(_PASSES):
        owner = _owners(end[left])
        inner = np.flatnonzero(owner >= 0)
        if not len(inner):
            break
        outlasted = np.bincount(owner[inner], minlength=len(left))
        # Those of another launch ran behind all that the same graph's launch started.
        other = graph[left[owner[inner]]] != graph[left[inner]]
        other |= graph[left[inner]] < 0
        behind = np.bincount(owner[inner[other]], minlength=len(left))
        surely = (behind >= _FEWEST_OUTLASTED) & ~weak[left]
        likely = (outlasted >= _FEWEST_OUTLASTED) & long[left]
        over = surely | likely
        if not over.any():
            break
        left = left[~over]
    over_all = np.setdiff1d(rows, left, assume_unique=True)
    if not len(over_all):
        return over_all
    if len(over_all) > max(1, _MOST_OVERRUNS * len(rows)) or _overlaps(start[left], end[left]):
        return over_all[:0]
    return over_all


def _owners(end: Int64s) -> Int64s:
    """The latest-ending row before each that outlasts it, -1 for none; rows in order of start."""
    reached = np.maximum.accumulate(end)
    leads = np.append(True, end[1:] > reached[:-1])
    last = np.maximum.accumulate(np.where(leads, np.arange(len(end)), 0))
    before = np.append(0, last[:-1])
    owner: Int64s = np.where(end < end[before] - _ROUNDED_NS, before, -1)
    return owner


def _overlaps(start: Int64s, end: Int64s) -> bool:
    """Whether many of a stream's records begin well before the one before them has ended."""
    if len(start) < 2:
        return False
    reached = np.maximum.accumulate(end)[:-1]
    shared = np.minimum(reached, end[1:]) - start[1:]
    shorter = np.minimum(end[1:] - start[1:], end[:-1] - start[:-1])
    overlaps = np.count_nonzero((shared > _OVERLAP_NS) & (2 * shared > shorter))
    return bool(overlaps > max(1, _MOST_OVERLAPS * len(start)))


def _longer_than_usual(gpu: pd.DataFrame, took: Int64s) -> Flags:
    """What is many times longer than most calls of the same kernel, collectives left out."""
    by_kernel = pd.Series(took).groupby(
        [gpu["name"].cat.codes.to_numpy(), gpu["grid"].astype("category").cat.codes.to_numpy()]
    )
    usual, calls = by_kernel.transform("median"), by_kernel.transform("size")
    waits = NameColumn(gpu["name"]).flags(lambda name: classify(name).component == "collective")
    long = (took > _LONG_TIMES * usual.to_numpy()) & (calls.to_numpy() > _FEWEST_CALLS)
    return np.asarray(long & ~waits)


def rows_of_streams(gpu: pd.DataFrame, rows: Int64s) -> list[Int64s]:
    """The rows of each stream of each device."""
    device, stream = (gpu[name].to_numpy(np.int64)[rows] for name in ("device", "stream"))
    order = np.lexsort((stream, device))
    device, stream = device[order], stream[order]
    cuts = np.flatnonzero((np.diff(device) != 0) | (np.diff(stream) != 0)) + 1
    return np.split(rows[order], cuts)
