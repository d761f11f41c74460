"""Ranges as the GPU saw them: what was launched inside a range, and when that ran.

Pure functions over the `markers`, `host` and `kernels` tables of one rank. A range has the work of
the API calls that lie wholly inside it on its own thread; so has each range around it. The answers
are those of `nsys stats`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.scopes import enclosing, groups


class RangeWork:
    """Work in the order of its launches, thread by thread: that of a range is then a slice.

    Args:
        host: rows of the `host` table, with `start_ns`, `end_ns`, `thread` and `correlation`.
        kernels: rows of the `kernels` table, with `start_ns`, `end_ns` and `correlation`.
    """

    def __init__(self, host: pd.DataFrame, kernels: pd.DataFrame) -> None:
        call = calls_of(host, kernels)
        row = np.flatnonzero(call >= 0)
        begun, returned, thread = (
            host[name].to_numpy(np.int64)[call[row]] for name in ("start_ns", "end_ns", "thread")
        )
        order = np.lexsort((begun, thread))
        row = row[order]
        self._begun, self._returned, self._thread = begun[order], returned[order], thread[order]
        self._start, self._end = (
            kernels[name].to_numpy(np.int64)[row] for name in ("start_ns", "end_ns")
        )

    def slices(self, markers: pd.DataFrame) -> tuple[Int64s, Int64s]:
        """The first work of each range and the one behind its last, as positions in that order.

        Args:
            markers: rows of the `markers` table. A range has what was called wholly inside it, on
                its own thread.
        """
        first, last = np.zeros((2, len(markers)), np.int64)
        start, end = (markers[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        for thread, found in groups(markers["thread"].to_numpy(np.int64)):
            begin = int(np.searchsorted(self._thread, thread))
            behind = int(np.searchsorted(self._thread, thread, side="right"))
            latest = np.maximum.accumulate(self._returned[begin:behind])
            first[found] = begin + np.searchsorted(self._begun[begin:behind], start[found])
            last[found] = begin + np.searchsorted(latest, end[found], side="right")
        return first, np.maximum(first, last)

    def extent(self, first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
        """From the first start to the last end of each slice; no slice may be empty."""
        # One behind the other, the slices leave gaps that are no longer than all work together.
        order = np.argsort(first, kind="stable")
        edges = np.stack([first[order], last[order]], axis=1).reshape(-1)
        start, end = np.empty((2, len(first)), np.int64)
        if len(first):
            start[order] = np.minimum.reduceat(np.append(self._start, 0), edges)[::2]
            end[order] = np.maximum.reduceat(np.append(self._end, 0), edges)[::2]
        return start, end


def calls_of(host: pd.DataFrame, kernels: pd.DataFrame) -> Int64s:
    """The row of `host` that launched each kernel, the first one of its number; -1 for none."""
    known = host["correlation"].to_numpy(np.int64)
    wanted = kernels["correlation"].to_numpy(np.int64)
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(known, kind="stable")
    place = order[np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)]
    return np.where((known[place] == wanted) & (wanted >= 0), place, -1)


def nesting(markers: pd.DataFrame) -> tuple[Int64s, Int64s]:
    """The push/pop range around each push/pop range, and how many there are.

    Returns:
        The row of the innermost one, -1 for none and for other ranges; and their number.
    """
    start, end = (markers[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    parent = np.full(len(markers), -1, np.int64)
    nested = np.flatnonzero(markers["nested"].to_numpy(bool))
    for _, found in groups(markers["thread"].to_numpy(np.int64)[nested]):
        rows = nested[found]
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        around = enclosing(start[rows], end[rows])
        parent[rows] = np.where(around >= 0, rows[around], -1)
    # Each round looks twice as far up.
    above, level = parent.copy(), (parent >= 0).astype(np.int64)
    active = np.flatnonzero(above >= 0)
    while len(active):
        level[active] += level[above[active]]
        above[active] = above[above[active]]
        active = active[above[active] >= 0]
    return parent, level


Int64s = npt.NDArray[np.int64]


def project(markers: pd.DataFrame, host: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The ranges with work on the GPU, in the order of `markers`; nvtx_gpu_proj_trace.

    Columns: `range`, the row of `markers`, and its columns but `step`; `gpu_start_ns` and
    `gpu_end_ns`, from the first work's start to the last one's end; `ops`, how many kernels, copies
    and memsets; `level`, how many push/pop ranges are around it; `parent`, the innermost of them as
    a row of `markers`, -1 for none; `children`, how many ranges with work have it as their parent.
    """
    work = RangeWork(host, kernels)
    first, last = work.slices(markers)
    row = np.flatnonzero(last > first)
    gpu_start, gpu_end = work.extent(first[row], last[row])
    parent, level = nesting(markers)
    above = parent[row]
    children = np.bincount(above[above >= 0], minlength=len(markers))
    columns = ["name", "domain", "nested", "thread", "start_ns", "end_ns"]
    found = markers[columns].iloc[row].reset_index(drop=True)
    found.insert(0, "range", row)
    return found.assign(
        gpu_start_ns=gpu_start,
        gpu_end_ns=gpu_end,
        ops=(last - first)[row],
        level=level[row],
        parent=above,
        children=children[row],
    )
