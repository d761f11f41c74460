"""Reads the CSV reports of `nsys stats`: sums of kernels, and two lists of kernels with times.

Format: "Statistical Reports Shipped With Nsight Systems" in NVIDIA's analysis guide, and the
reports of 2021 to 2026. A column's name holds the unit, which `--timeunit` changes.
`cuda_gpu_trace` lists kernels, copies and memsets; `cuda_kern_exec_trace` kernels with the calls
that launched them. Times count from the beginning of the nsys session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.foreign import (
    Foreign,
    ForeignProcess,
    KernelSum,
    Window,
    end_to_end,
    gpu_frame,
    window,
)
from spark_prof.traces.readers.printed_tables import (
    PrintedTable,
    number,
    small,
    time_ns,
    triple,
    units_of,
    whole,
)

FORMAT = "nsys-stats"

Times = tuple[Int64s, Int64s]

_DEVICE = re.compile(r"(?P<name>.*) \((?P<number>\d{1,4})\)")
_ROWS = 1 << 18  # rows of a list that become one window
_MOST_PROCESSES = 4096
_FACTS = {"tool": "nsys stats"}  # no report of nsys stats tells kernels of CUDA graphs from others
_MOST_BYTES = 1 << 62
_BYTES = {"byte": 1, "bytes": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_LOST = (
    "the list has no layers, ranges or CUDA graph nodes, and counts time from the session's start"
)
_GRID, _BLOCK = ("GrdX", "GrdY", "GrdZ"), ("BlkX", "BlkY", "BlkZ")


def gpu_trace(table: PrintedTable) -> Foreign:
    """What ran on the GPUs, from the report cuda_gpu_trace."""
    units = units_of(table.head)
    process = ForeignProcess(None, dict(_FACTS))
    lost = [_LOST, "when and by which thread the kernels were launched is unknown"]
    if any(units[n][1] not in ("byte", "bytes", "B") for n in _SIZES if n in units):
        lost.append("sizes are rounded to what the report prints")

    def windows() -> Iterator[Window]:
        sizes = [units.get(name, ("", ""))[0] for name in _SIZES]
        columns = (units["Start"][0], units["Duration"][0], "Device", "Strm", "Name", "Reg/Trd")
        for rows in _chunks(table.rows(*columns, *sizes, *_GRID, *_BLOCK)):
            start, end = _times(table, rows, units["Start"][1], units["Duration"][1])
            static, dynamic, moved = (
                [_bytes(row[6 + i], units.get(name, ("", ""))[1]) for row in rows]
                for i, name in enumerate(_SIZES)
            )
            gpu = gpu_frame(
                start_ns=start,
                end_ns=end,
                device=_devices([row[2] for row in rows], process.facts),
                stream=[whole(row[3]) or 0 for row in rows],
                name=[row[4] for row in rows],
                kind=[_kind(row[4]) for row in rows],
                registers=[small(row[5]) for row in rows],
                shared_bytes=[min(sum(s), 1 << 30) for s in zip(static, dynamic, strict=True)],
                bytes=moved,
                grid=[triple(" ".join(row[9:12])) for row in rows],
                block=[triple(" ".join(row[12:15])) for row in rows],
            )
            yield window(0, gpu.sort_values("start_ns", kind="stable", ignore_index=True))
        lost.extend(table.lost())

    return Foreign(FORMAT, [process], windows(), lost)


def kernel_list(table: PrintedTable) -> Foreign:
    """Kernels and the calls that launched them, from the report cuda_kern_exec_trace."""
    units = units_of(table.head)
    numbers = {pid: i for i, pid in enumerate(dict.fromkeys(r[0] for r in table.rows("PID")))}
    if len(numbers) > _MOST_PROCESSES:
        raise CommandError(f"{table.path} names {len(numbers)} processes; write it again")
    processes = [ForeignProcess(None, {"pid": whole(pid) or 0, **_FACTS}) for pid in numbers]
    lost = [_LOST, "copies, memsets, streams and registers are no part of this report of nsys"]

    def windows() -> Iterator[Window]:
        columns = [units[name][0] for name in _LAUNCH_TIMES]
        columns += ["PID", "TID", "DevId", "API Function", "GridXYZ", "BlockXYZ", "Kernel Name"]
        calls = 0
        for rows in _chunks(table.rows(*columns)):
            of_process: dict[str, list[list[str]]] = {}
            for row in rows:
                of_process.setdefault(row[4], []).append(row)
            for pid, mine in of_process.items():
                yield _launched(table, numbers[pid], mine, units, calls)
                calls += len(mine)
        lost.extend(table.lost())

    return Foreign(FORMAT, processes, windows(), lost)


_SIZES = ("StcSMem", "DymSMem", "Bytes")
_LAUNCH_TIMES = ("Kernel Start", "Kernel Dur", "API Start", "API Dur")


def _launched(
    table: PrintedTable,
    process: int,
    rows: list[list[str]],
    units: Mapping[str, tuple[str, str]],
    first: int,
) -> Window:
    """The kernels of one process with the calls that launched them, numbered from `first` on.

    The report has no correlation: rows with the same thread, call and time are one call, which
    launched a whole CUDA graph.
    """
    times = [units[name][1] for name in _LAUNCH_TIMES]
    start, end = _times(table, rows, times[0], times[1])
    begin, back = _times(table, [row[2:] for row in rows], times[2], times[3])
    thread = np.array([whole(row[5]) or 0 for row in rows], np.int64)
    calls = pd.DataFrame(
        {"name": [r[7] for r in rows], "start_ns": begin, "end_ns": back, "thread": thread}
    )
    together = calls.groupby(list(calls.columns), sort=False).ngroup().to_numpy(np.int64)
    launches = calls.assign(correlation=first + together)
    gpu = gpu_frame(
        start_ns=start,
        end_ns=end,
        name=[row[10] for row in rows],
        device=[small(row[6]) for row in rows],
        correlation=launches["correlation"].to_numpy(),
        grid=[triple(row[8]) for row in rows],
        block=[triple(row[9]) for row in rows],
    )
    order = np.argsort(start, kind="stable")
    return window(
        process,
        gpu.iloc[order].reset_index(drop=True),
        launches=launches.drop_duplicates().sort_values("start_ns", kind="stable"),
        launch_ns=begin[order],
        thread=thread[order],
    )


def _chunks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    while chunk := list(islice(rows, _ROWS)):
        yield chunk


def _times(table: PrintedTable, rows: list[list[str]], start_unit: str, unit: str) -> Times:
    """Start and end in ns of rows that begin with a start and a duration."""
    start, end = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for i, row in enumerate(rows):
        begin, duration = time_ns(row[0], start_unit), time_ns(row[1], unit)
        if begin is None or duration is None or begin < 0 or duration < 0:
            raise table.bad(row, "no time")
        start[i], end[i] = begin, begin + duration
    return start, end


def _devices(texts: list[str], facts: dict[str, Any]) -> list[int]:
    """Numbers of devices such as "NVIDIA H100 80GB HBM3 (0)"; the first one's name is a fact."""
    numbers = {}
    for text in dict.fromkeys(texts):
        match = _DEVICE.fullmatch(text)
        numbers[text] = int(match["number"]) if match else 0
        if match:
            facts.setdefault("gpu", {"name": match["name"], "vendor": "NVIDIA"})
    return [numbers[text] for text in texts]


def _kind(name: str) -> str:
    """What a row of the list is: copies and memsets stand in square brackets."""
    if name.startswith("[CUDA memset"):
        return "memset"
    return "memcpy" if name.startswith("[CUDA memcpy") else "kernel"


@lru_cache(maxsize=4096)
def _bytes(text: str, unit: str) -> int:
    size = number(text)
    if size is None or not 0 <= size < _MOST_BYTES:
        return 0
    return min(int(size * _BYTES.get(unit, 0)), _MOST_BYTES)


_MOST_SUMS = 1 << 20


@dataclass(frozen=True)
class StatsReport:
    """A report of nsys stats that can be read."""

    name: str
    columns: frozenset[str]  # those, without their units, that tell it from every other report
    absent: frozenset[str]  # columns of other reports that have all these as well
    example: str  # its head, as a version of nsys writes it
    read: Callable[[PrintedTable], Foreign]


def nsys_stats_csv(path: Path) -> Foreign:
    """Reads one report, plain or compressed."""
    expected = f"the CSV of one of these reports of nsys stats: {REPORT_NAMES}"
    table = PrintedTable(path, lambda head: report_of(head) is not None, expected)
    name = report_of(table.head)
    return next(report for report in REPORTS if report.name == name).read(table)


def report_of(head: Sequence[str]) -> str | None:
    """The name of the report whose table has that head, None for any other table."""
    names = set(units_of(head))
    reports = (r.name for r in REPORTS if r.columns <= names and not r.absent & names)
    return next(reports, None)


def _kernel_sums(table: PrintedTable) -> Foreign:
    units = units_of(table.head)
    total, unit = units["Total Time"]
    sums: list[KernelSum] = []
    for row in table.rows(total, "Instances", "Name", "GridXYZ", "BlockXYZ"):
        time, instances = time_ns(row[0], unit), whole(row[1])
        if time is None or instances is None:
            raise table.bad(row, "no time or no count")
        if len(sums) >= _MOST_SUMS:
            raise table.bad(row, "a million rows before it")
        sums.append(KernelSum(row[2], instances, time, 0, triple(row[3]), triple(row[4])))
    if not sums:
        raise CommandError(f"{table.path} lists no kernel; nothing ran on a GPU, or nsys saw none")
    lost = [
        "a table of sums: the order of the kernels, the gaps between them, steps, layers and "
        "launches are unknown; each instance of a kernel is given its mean time",
        "copies and memsets are no part of this report of nsys",
        *table.lost(),
    ]
    process = ForeignProcess(None, {"summed": True, "tool": "nsys stats"})
    return Foreign(FORMAT, [process], end_to_end(0, sums, table.path), lost)


REPORTS = (
    StatsReport(
        "cuda_gpu_kern_sum",
        frozenset({"Total Time", "Instances", "Name"}),
        frozenset({"Source", "Range", "NVTX Range"}),
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name",
        _kernel_sums,
    ),
    StatsReport(
        "cuda_gpu_trace",
        frozenset({"Start", "Duration", "CorrId", "GrdX", "Device", "Strm", "Name"}),
        frozenset(),
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
        "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name",
        gpu_trace,
    ),
    StatsReport(
        "cuda_kern_exec_trace",
        frozenset({"API Start", "API Dur", "Kernel Start", "Kernel Dur", "PID", "TID"}),
        frozenset(),
        "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),"
        "Kernel Dur (ns),Total Dur (ns),PID,TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name",
        kernel_list,
    ),
)
"""The reports that can be read, the first that fits counts."""

REPORT_NAMES = ", ".join(report.name for report in REPORTS)  # their names, for messages
