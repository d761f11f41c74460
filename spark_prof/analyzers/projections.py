"""Ranges as the GPU saw them: what was launched inside a range, and when that ran.

Pure functions over the `markers`, `host` and `kernels` tables of one rank. A range has the work of
the API calls that lie wholly inside it on its own thread; so has each range around it. The answers
are those of `nsys stats`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import positions
from spark_prof.traces.scopes import enclosing, groups

Int64s = npt.NDArray[np.int64]


def calls_of(host: pd.DataFrame, kernels: pd.DataFrame) -> Int64s:
    """The row of `host` that launched each kernel, the first one of its number; -1 for none."""
    known, first = np.unique(host["correlation"].to_numpy(np.int64), return_index=True)
    wanted = kernels["correlation"].to_numpy(np.int64)
    return np.where(wanted >= 0, np.append(first, -1)[positions(known, wanted)], -1)


def _slices(markers: pd.DataFrame, calls: pd.DataFrame) -> tuple[Int64s, Int64s]:
    """The first of a thread's calls inside each range and the one behind its last, as positions."""
    first, last = np.zeros((2, len(markers)), np.int64)
    start, end = (markers[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    thread, begun, returned = (calls[n].to_numpy() for n in ("thread", "start_ns", "end_ns"))
    for own, found in groups(markers["thread"].to_numpy(np.int64)):
        begin, behind = np.searchsorted(thread, (own, own + 1))
        latest = np.maximum.accumulate(returned[begin:behind])
        first[found] = begin + np.searchsorted(begun[begin:behind], start[found])
        last[found] = begin + np.searchsorted(latest, end[found], side="right")
    return first, np.maximum(first, last)


def _extent(work: pd.DataFrame, first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """From the first start to the last end of each slice; no slice may be empty."""
    # One behind the other, the slices leave gaps that are no longer than all work together.
    order = np.argsort(first, kind="stable")
    edges = np.stack([first[order], last[order]], axis=1).reshape(-1)
    start, end = np.empty((2, len(first)), np.int64)
    if len(first):
        start[order] = np.minimum.reduceat(np.append(work["start_ns"], 0), edges)[::2]
        end[order] = np.maximum.reduceat(np.append(work["end_ns"], 0), edges)[::2]
    return start, end


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


def project(markers: pd.DataFrame, host: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The ranges with work on the GPU, in the order of `markers`; nvtx_gpu_proj_trace.

    Columns: `range`, the row of `markers`, and its columns but `step`; `gpu_start_ns` and
    `gpu_end_ns`, from the first work's start to the last one's end; `ops`, how many kernels, copies
    and memsets; `level`, how many push/pop ranges are around it; `parent`, the innermost of them as
    a row of `markers`, -1 for none; `children`, how many ranges with work have it as their parent.
    """
    # In the order of its launches, thread by thread, the work of a range is a slice.
    call = calls_of(host, kernels)
    calls, work = host.iloc[call[call >= 0]], kernels[call >= 0]
    order = np.lexsort((calls["start_ns"], calls["thread"]))
    first, last = _slices(markers, calls.iloc[order])
    row = np.flatnonzero(last > first)
    gpu_start, gpu_end = _extent(work.iloc[order], first[row], last[row])
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
