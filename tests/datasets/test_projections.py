"""Ranges projected onto the GPU: by hand, against a slow and plain way, and against nsys stats."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from spark_prof.datasets.sql_query import LAUNCHES, project
from spark_prof.traces.readers.nsys_import import nsys_export

SHARED = Path(__file__).parents[3] / "shared" / "traces"
STATS = SHARED / "nsys_stats_2023.4"
EXPORT = SHARED / "nsys" / "h100_2gpu_1s.sqlite"

needs_stats = pytest.mark.skipif(
    not STATS.is_dir(), reason="the folder shared/traces/nsys_stats_2023.4 is not there"
)

Rank = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


def stats(report: str) -> pd.DataFrame:
    return pd.read_csv(STATS / f"h100_2gpu_1s_{report}.csv.gz", keep_default_na=False)


@pytest.fixture(scope="module")
def ranks() -> list[Rank]:
    """Markers, host and kernels of each process, with times from the session's start."""
    foreign = nsys_export(EXPORT, lambda name: False)
    begun = 1_779_630_014_975_716_426
    found: list[Rank] = []
    for window in foreign.windows:
        pid = foreign.processes[window.process].facts["pid"]
        tables = (window.trace.markers, window.trace.launches, window.trace.gpu)
        times = [
            table.assign(
                start_ns=table["start_ns"] - begun, end_ns=table["end_ns"] - begun, pid=pid
            )
            for table in tables
        ]
        found.append((times[0], times[1], times[2]))
    assert len(found) == 2
    return found


def without_version(name: str) -> str:
    return re.sub(r"_v\d+$", "", name)


@needs_stats
def test_launches_are_those_of_nsys(ranks: list[Rank]) -> None:
    told = stats("cuda_kern_exec_trace").replace({"Queue Dur (ns)": {"": -1}})
    tables = {
        "kernels": pd.concat([kernels.assign(rank=n) for n, (_, _, kernels) in enumerate(ranks)]),
        "host": pd.concat([host.assign(rank=n) for n, (_, host, _) in enumerate(ranks)]),
    }
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table.assign(bundle="b"))
        found = database.execute(
            f"SELECT l.*, grid, block, pid FROM ({LAUNCHES}) l JOIN kernels k "
            "USING (rank, correlation, start_ns)"
        ).df()
    mine = [
        (row.call_ns, row.call_time_ns, row.queue_ns, row.start_ns, row.time_ns, row.total_ns,
         row.pid, row.thread, row.device, without_version(row.function), row.grid, row.block,
         row.name)
        for row in found.itertuples()
    ]  # fmt: skip
    columns = [
        "API Start (ns)", "API Dur (ns)", "Queue Dur (ns)", "Kernel Start (ns)",
        "Kernel Dur (ns)", "Total Dur (ns)", "PID", "TID", "DevId",
    ]  # fmt: skip
    expected = [
        (*map(int, numbers), without_version(function), *(",".join(t.split()) for t in shape), name)
        for numbers, function, *shape, name in zip(
            told[columns].itertuples(index=False, name=None), told["API Function"],
            told["GridXYZ"], told["BlockXYZ"], told["Kernel Name"], strict=True,
        )
    ]  # fmt: skip
    assert sorted(mine) == sorted(expected)
    assert len(mine) == 1632


@needs_stats
def test_projected_ranges_are_those_of_nsys(ranks: list[Rank]) -> None:
    told = stats("nvtx_gpu_proj_trace")
    with sqlite3.connect(f"file:{EXPORT}?mode=ro&immutable=1", uri=True) as connection:
        rows = connection.execute(
            "SELECT globalTid >> 24 & 16777215, start, rowid FROM NVTX_EVENTS"
        )
        numbers = {(pid, start): number for pid, start, number in rows}
    mine = []
    for markers, host, kernels in ranks:
        places = zip(markers["pid"], markers["start_ns"], strict=True)
        number = [*(numbers[place] for place in places), 0]
        found = project(markers, host, kernels)
        parents = dict(zip(found["range"], found["parent"], strict=True))
        for row in found.itertuples():
            stack, above = "", row.range
            while above >= 0:
                stack = f":{number[above]}{stack}"
                above = parents[above]
            mine.append((
                row.name, row.gpu_start_ns, row.gpu_end_ns - row.gpu_start_ns, row.start_ns,
                row.end_ns - row.start_ns, markers["pid"].iloc[0], row.thread, row.ops, row.level,
                row.children, number[row.range], number[row.parent], stack,
            ))  # fmt: skip
    columns = [
        "Name", "Projected Start (ns)", "Projected Duration (ns)", "Orig Start (ns)",
        "Orig Duration (ns)", "PID", "TID", "NumGPUOps", "Lvl", "NumChild", "RangeId", "ParentId",
        "RangeStack",
    ]  # fmt: skip
    told["ParentId"] = told["ParentId"].replace("", 0).astype(int)
    assert sorted(mine) == sorted(told[columns].itertuples(index=False, name=None))
    assert len(mine) == 3242


def test_start_end_ranges_are_nobody_s_parent() -> None:
    markers = pd.DataFrame(
        {"name": ["a", "b", "c"], "domain": "", "start_ns": [0, 1, 2], "end_ns": [100, 90, 80],
         "thread": 1, "nested": [True, False, True]}
    )  # fmt: skip
    host = pd.DataFrame(
        {"name": ["f"], "start_ns": [10], "end_ns": [12], "thread": [1], "correlation": [5]}
    )
    kernels = pd.DataFrame(
        {"kind": ["kernel"], "name": ["k"], "start_ns": [500], "end_ns": [600], "correlation": [5]}
    )
    found = project(markers, host, kernels)
    columns = ["name", "level", "parent", "children", "ops"]
    assert found[columns].to_numpy().tolist() == [
        ["a", 0, -1, 1, 1], ["b", 0, -1, 0, 1], ["c", 1, 0, 0, 1],
    ]  # fmt: skip
