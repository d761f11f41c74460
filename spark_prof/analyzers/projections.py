"""Ranges as the GPU saw them: what was launched inside a range, and when that ran.

Pure functions over the `markers`, `host` and `kernels` tables of one rank. A range has the work of
the API calls that lie wholly inside it on its own thread; so has each range around it. The answers
are those of `nsys stats`, whose report is named at each function.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.range_work import RangeWork, calls_of, nesting

__all__ = [
    "STATISTICS",
    "api_sums",
    "kernel_sums",
    "launched",
    "project",
    "projection_sums",
    "range_kernel_sums",
    "range_sums",
]

Int64s = npt.NDArray[np.int64]

STATISTICS = (
    "share", "total_ns", "count", "mean_ns", "median_ns", "min_ns", "max_ns", "std_ns",
)  # fmt: skip
"""The columns of every sum: the share of the total of all rows; the sample's standard deviation."""


def kernel_sums(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels by name, the longest first: `name` and STATISTICS; cuda_gpu_kern_sum."""
    found = kernels[kernels["kind"] == "kernel"]
    return _sums(found[["name"]], _lasted(found))


def api_sums(host: pd.DataFrame) -> pd.DataFrame:
    """API calls by function, the longest first: `name` and STATISTICS; cuda_api_sum."""
    return _sums(host[["name"]], _lasted(host))


def range_sums(markers: pd.DataFrame) -> pd.DataFrame:
    """Push/pop ranges by text, their own time: `domain`, `name`, STATISTICS; nvtx_pushpop_sum."""
    nested = markers[markers["nested"]]
    return _sums(nested[["domain", "name"]], _lasted(nested))


def launched(host: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels with the calls that launched them, in order of the calls; cuda_kern_exec_trace.

    Columns: `kernel` and `call`, rows of the two tables; `call_ns`, the call's start, and
    `call_time_ns`; `queue_ns` from its return to the kernel's start, -1 where that was before;
    `start_ns` and `time_ns` of the kernel; `total_ns` from the call's start until both ended.
    """
    call = calls_of(host, kernels)
    row = np.flatnonzero((kernels["kind"] == "kernel").to_numpy() & (call >= 0))
    start, end = (kernels[name].to_numpy(np.int64)[row] for name in ("start_ns", "end_ns"))
    begun, returned = (host[n].to_numpy(np.int64)[call[row]] for n in ("start_ns", "end_ns"))
    found = pd.DataFrame(
        {
            "kernel": row,
            "call": call[row],
            "call_ns": begun,
            "call_time_ns": returned - begun,
            "queue_ns": np.where(start >= returned, start - returned, -1),
            "start_ns": start,
            "time_ns": end - start,
            "total_ns": np.maximum(end, returned) - begun,
        }
    )
    return found.sort_values(["call_ns", "start_ns"], kind="stable", ignore_index=True)


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


def projection_sums(projected: pd.DataFrame) -> pd.DataFrame:
    """Projected ranges by text, the longest on the GPU first; nvtx_gpu_proj_sum.

    Columns: `domain`, `name`, `nested`, STATISTICS of the time on the GPU; `host_ns`, their own
    time together; `ops`; and the means `mean_level` and `mean_children`.

    Args:
        projected: what `project` gives, of one rank or of several below each other.
    """
    lasted = projected["gpu_end_ns"] - projected["gpu_start_ns"]
    return _sums(
        projected[["domain", "name", "nested"]],
        lasted.to_numpy(np.int64),
        host_ns=(_lasted(projected), "sum"),
        ops=(projected["ops"].to_numpy(), "sum"),
        mean_level=(projected["level"].to_numpy(), "mean"),
        mean_children=(projected["children"].to_numpy(), "mean"),
    )


def range_kernel_sums(
    markers: pd.DataFrame, host: pd.DataFrame, kernels: pd.DataFrame
) -> pd.DataFrame:
    """Kernels by range and name, each in every range around its launch; nvtx_kern_sum.

    Columns: `domain`, `range` (its text), `nested`, `thread`, `name` (the kernel's), STATISTICS,
    and `ranges`, how many of that text launched it. Behind them, with thread -1 and no text, come
    the kernels that are in no range or whose launch is unknown.
    """
    found = kernels[kernels["kind"] == "kernel"].reset_index(drop=True)
    lasted = _lasted(found)
    work = RangeWork(host, found)
    marker, row = work.pairs(*work.slices(markers))
    keys = markers[["domain", "name", "nested", "thread"]].iloc[marker].reset_index(drop=True)
    keys = keys.rename(columns={"name": "range"}).assign(name=found["name"].array[row])
    inside = _sums(keys, lasted[row], ranges=(marker, "nunique"))
    alone = np.ones(len(found), bool)
    alone[row] = False
    outside = _sums(found.loc[alone, ["name"]], lasted[alone])
    outside = outside.assign(domain="", range="", nested=False, thread=-1, ranges=0)
    texts = dict.fromkeys(("domain", "range", "name"), object)
    sums = pd.concat([inside.astype(texts), outside[inside.columns].astype(texts)])
    share = sums["total_ns"] / max(1, int(sums["total_ns"].sum()))
    return sums.assign(share=share).reset_index(drop=True)


def _lasted(rows: pd.DataFrame) -> Int64s:
    return (rows["end_ns"] - rows["start_ns"]).to_numpy(np.int64)


def _sums(keys: pd.DataFrame, time: Int64s, **more: tuple[Int64s, str]) -> pd.DataFrame:
    """Sums over the rows that agree in all keys; `more` gives further columns, and their sums."""
    names = list(keys.columns)
    values = {"time": time} | {name: column for name, (column, _) in more.items()}
    groups = keys.assign(**values).groupby(names, observed=True, sort=False)
    sums = groups.agg(
        total_ns=("time", "sum"),
        count=("time", "size"),
        mean_ns=("time", "mean"),
        median_ns=("time", "median"),
        min_ns=("time", "min"),
        max_ns=("time", "max"),
        std_ns=("time", "std"),
        **{name: (name, how) for name, (_, how) in more.items()},
    ).reset_index()
    share = sums["total_ns"] / max(1, int(time.sum()))
    sums = sums.assign(share=share, std_ns=sums["std_ns"].fillna(0.0))
    sums = sums.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    return sums[[*names, *STATISTICS, *more]]
