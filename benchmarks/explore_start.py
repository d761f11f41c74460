"""Time and memory until the explorer has what its first page shows, of 1 and 10 million kernels.

A fresh process prepares a bundle as the explorer's server does: the first time it is read (cold),
then what was kept is found (warm). The bundles are those of report_speed.py, of the kind graphs.
What a browser and Streamlit take comes on top of it. The floor is a fresh process that only reads
the same columns with pyarrow.

usage: python benchmarks/explore_start.py [--millions 1,10] [--runs 3] [--keep FOLDER]

It fails where the report is there later than the bar for a first page, or the server's process
takes more memory than its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from report_speed import CAPTURES, DATA, make_bundle, measure

from spark_prof.traces.bundle import Bundle, table_file

BAR_SECONDS = {1: 3.0, 10: 6.0}
BAR_WARM = 1.0
BAR_MEMORY = 2 << 30
SERVER = """
import json, os, resource, sys, time
begin = float(sys.argv[2])
from spark_prof.datasets.prepared import prepare
prepared = prepare(sys.argv[1])
report = time.monotonic() - begin
count = len(prepared.kernels)
rest = time.monotonic() - begin
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    pass
kib = [resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"report": report, "rest": rest, "server": kib[0] << 10, "child": kib[1] << 10}))
"""
FLOOR = """
import sys, pyarrow.parquet as pq
columns = "name kind start_ns end_ns step layer device stream grid block registers shared_bytes"
names = ["name", "kind", "grid", "block"]
pq.read_table(sys.argv[1], columns=columns.split(), read_dictionary=names)
"""


@dataclass(frozen=True)
class Start:
    """Seconds from the start of a process until the report and all else is there; peak bytes."""

    report: float
    rest: float
    server: int
    child: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", default="1,10", help="sizes, by commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="make the bundles there and keep them")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(f"2 cores, median of {options.runs} runs; seconds until the report and all else is there")
    print("   kernels   start  report  all else  server MiB  child MiB   reading only")
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for millions in (int(size) for size in options.millions.split(",")):
            bundle = (options.keep or Path(temporary)) / f"{millions}m-graphs"
            if not bundle.exists():
                make_bundle(Bundle(DATA / CAPTURES["graphs"]), bundle, "graphs", millions * 10**6)
            failed |= shown(bundle, millions, options.runs, Path(temporary))
    return int(failed)


def shown(bundle: Path, millions: int, runs: int, temporary: Path) -> bool:
    """Prints a line for cold and one for warm starts; whether one of them misses its bar."""
    kernels = bundle / table_file("kernels", 0)
    rows = Bundle(bundle).meta.tables[kernels.name]
    floors, cold, warm = [], [], []
    for run in range(runs):
        floors.append(measure([sys.executable, "-c", FLOOR, str(kernels)])[0])
        cache = temporary / f"cache-{millions}-{run}"
        cold.append(start(bundle, cache))
        warm.append(start(bundle, cache))
    failed = False
    for name, starts, bar in (("cold", cold, BAR_SECONDS.get(millions)), ("warm", warm, BAR_WARM)):
        report, rest, server, child = (
            statistics.median(getattr(found, field) for found in starts)
            for field in ("report", "rest", "server", "child")
        )
        print(
            f"{rows:10,}   {name:5}  {report:6.2f}  {rest:8.2f}  {server / 2**20:10.0f}  "
            f"{child / 2**20:9.0f}   {statistics.median(floors):10.2f} s"
        )
        failed |= server > BAR_MEMORY or (bar is not None and report > bar)
    return failed


def start(bundle: Path, cache: Path) -> Start:
    """Starts a fresh process that prepares the bundle with this cache."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    ended = subprocess.run(
        [sys.executable, "-c", SERVER, str(bundle), str(time.monotonic())],
        env=environment, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return msgspec.json.decode(ended.stdout, type=Start)


if __name__ == "__main__":
    sys.exit(main())
