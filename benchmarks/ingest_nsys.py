"""Times spark-prof and its peers on nsys exports that `make_nsys.py` writes."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cost import Cost, line, measure

BARS = {2_200_000: (40.0, 4.0)}
"""Seconds and GiB for import and report, by how many kernels the export has."""

EVENTS = {
    "ranges": "NVTX_EVENTS", "calls": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
}  # fmt: skip

_PART = 100
"""The join in SQL is timed on this part of the time."""

_READER = """
import sys
from pathlib import Path
from spark_prof.traces.readers.nsys_import import nsys_export
for window in nsys_export(Path(sys.argv[1]), lambda name: name.startswith("model")).windows:
    pass
"""
_SELECT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
for sql in (
    "SELECT start, end, eventType, globalTid, domainId, textId, text FROM NVTX_EVENTS",
    "SELECT start, end, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    "SELECT start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName,"
    " gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, graphNodeId"
    " FROM CUPTI_ACTIVITY_KIND_KERNEL",
):
    cursor = connection.execute(sql)
    while cursor.fetchmany(65536):
        pass
"""
_JOIN = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("CREATE INDEX r ON CUPTI_ACTIVITY_KIND_RUNTIME (correlationId, globalTid)")
connection.execute("CREATE INDEX n ON NVTX_EVENTS (globalTid, start, end)")
found = connection.execute(
    "SELECT k.rowid, max(n.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k"
    " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId"
    " AND r.globalTid & ~0xffffff = k.globalPid"
    " JOIN NVTX_EVENTS n ON n.globalTid = r.globalTid AND n.start <= r.start AND n.end >= r.end"
    " GROUP BY k.rowid"
)
for row in found:
    pass
"""


def count_rows(export: Path) -> dict[str, int]:
    """How many ranges, calls and kernels an export has."""
    with sqlite3.connect(export) as connection:
        return {
            events: connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
            for events, table in EVENTS.items()
        }


def write_part(export: Path, part: Path) -> None:
    """Copies the first hundredth of an export's time."""
    with sqlite3.connect(export) as connection:
        connection.execute("ATTACH ? AS part", (str(part),))
        for table in EVENTS.values():
            first, last = (
                connection.execute(f"SELECT start FROM {table} WHERE rowid = {number}").fetchone()[
                    0
                ]
                for number in (1, f"(SELECT max(rowid) FROM {table})")
            )
            connection.execute(
                f"CREATE TABLE part.{table} AS SELECT * FROM main.{table} "
                f"WHERE start < {first + (last - first) // _PART}"
            )


def run_nsys(kernels: int, folder: Path, peers: str | None) -> Cost | None:
    """Times everything on one export and prints a line each; returns what spark-prof took.

    Args:
        kernels: about how many kernels the export has.
        folder: where it is made, or lies from another run.
        peers: a Python that has nsys-ai, if there is one.
    """
    export = folder / f"nsys-{kernels}.sqlite"
    if not export.exists():
        # In a process of its own: a child's peak memory counts what its parent held.
        maker = str(Path(__file__).with_name("make_nsys.py"))
        subprocess.run([sys.executable, maker, str(kernels), str(export)], check=True)
    rows = count_rows(export)
    counts = ", ".join(f"{count:,} {events}" for events, count in rows.items())
    print(f"\nnsys, {counts}, {export.stat().st_size / 1e6:,.0f} MB")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        bundle = str(Path(scratch) / "bundle")
        spark_prof = [sys.executable, "-m", "spark_prof.cli.main"]
        read = measure([*spark_prof, "import", str(export), "-o", bundle])
        report = measure([*spark_prof, "report", bundle])
        total = (
            Cost(read.seconds + report.seconds, max(read.memory, report.memory))
            if read and report
            else None
        )
        line("spark-prof import", read, total)
        line("spark-prof report", report, total)
        line("both", total, total)
        line("its reader alone", measure([sys.executable, "-c", _READER, str(export)]), total)
        line("SELECT in sqlite3", measure([sys.executable, "-c", _SELECT, str(export)]), total)
        part = Path(scratch) / "part.sqlite"
        write_part(export, part)
        joined = measure([sys.executable, "-c", _JOIN, str(part)])
        line(f"SQL join, 1/{_PART} of it", joined, total)
        if joined:
            least = Cost(joined.seconds * _PART, joined.memory)
            line("the whole, extrapolated", least, total)
        missing = "import importlib.util; exit(not importlib.util.find_spec('nsys_ai'))"
        if not peers or not measure([peers, "-c", missing]):
            print(f"{'nsys-ai warm':24} absent (--peers PYTHON, one that can import nsys_ai)")
        else:
            # It puts its cache beside the file.
            copy = Path(scratch) / "copy.sqlite"
            shutil.copy(export, copy)
            line("nsys-ai warm", measure([peers, "-m", "nsys_ai", "warm", str(copy)]), total)
    return total


def meets_bar(kernels: int, total: Cost | None) -> bool:
    """Whether import and report of an export with so many kernels were fast and small enough."""
    seconds, memory = BARS.get(kernels, (float("inf"), 4.0))
    return total is not None and total.seconds <= seconds and total.memory <= memory * 2**30
