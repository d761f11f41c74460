"""Ranges as the GPU saw them: what was launched inside a range, and when that ran.

Pure functions over the `markers`, `host` and `kernels` tables of one rank. A range has the work of
the API calls that lie wholly inside it on its own thread; so has each range around it. The answers
are those of `nsys stats`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.analyzers.range_work import RangeWork, nesting


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
