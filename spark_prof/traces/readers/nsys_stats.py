"""Reads the CSV reports of `nsys stats`: sums of kernels, and two lists of kernels with times.

Format: "Statistical Reports Shipped With Nsight Systems" in NVIDIA's analysis guide, and the
reports of 2021 to 2026. A column's name holds the unit, which `--timeunit` changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Foreign, Process
from spark_prof.traces.readers.nsys_lists import FORMAT, gpu_trace, kernel_list, triple
from spark_prof.traces.readers.printed_tables import PrintedTable, time_ns, units_of, whole
from spark_prof.traces.readers.windows import KernelSum, end_to_end

_MOST_SUMS = 1 << 20


@dataclass(frozen=True)
class Report:
    """A report of nsys stats that can be read.

    Attributes:
        columns: those, without their units, that tell it from every other report.
        absent: columns of other reports that have all these as well.
        example: its head, as a version of nsys writes it.
    """

    name: str
    columns: frozenset[str]
    absent: frozenset[str]
    example: str
    read: Callable[[PrintedTable], Foreign]


def nsys_stats_csv(path: Path) -> Foreign:
    """Reads one report, plain or compressed.

    Raises:
        CommandError: the file is none of the three reports, or is damaged.
    """
    what = f"the CSV of one of these reports of nsys stats: {REPORT_NAMES}"
    table = PrintedTable(path, lambda head: report_of(head) is not None, what)
    name = report_of(table.head)
    return next(report for report in REPORTS if report.name == name).read(table)


def report_of(head: Sequence[str]) -> str | None:
    """The name of the report whose table has that head, None for any other table."""
    names = set(units_of(head))
    found = (r.name for r in REPORTS if r.columns <= names and not r.absent & names)
    return next(found, None)


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
    process = Process(None, {"summed": True, "tool": "nsys stats", "execution": "unknown"})
    return Foreign(FORMAT, [process], end_to_end(0, sums, table.path), lost)


REPORTS = (
    Report(
        "cuda_gpu_kern_sum",
        frozenset({"Total Time", "Instances", "Name"}),
        frozenset({"Source", "Range", "NVTX Range"}),
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name",
        _kernel_sums,
    ),
    Report(
        "cuda_gpu_trace",
        frozenset({"Start", "Duration", "CorrId", "GrdX", "Device", "Strm", "Name"}),
        frozenset(),
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
        "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name",
        gpu_trace,
    ),
    Report(
        "cuda_kern_exec_trace",
        frozenset({"API Start", "API Dur", "Kernel Start", "Kernel Dur", "PID", "TID"}),
        frozenset(),
        "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),"
        "Kernel Dur (ns),Total Dur (ns),PID,TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name",
        kernel_list,
    ),
)
"""The reports that can be read, the first that fits counts."""

REPORT_NAMES = ", ".join(report.name for report in REPORTS)
"""Their names, for messages."""
