"""Whole exports of nsys: every process with its kernels, launches, ranges and graphs."""

from __future__ import annotations

import csv
import gzip
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_prof.traces.chunks import CLOCK_MARK
from spark_prof.traces.foreign import Foreign, Window
from spark_prof.traces.readers.nsys_facts import nsys_lacks
from spark_prof.traces.readers.nsys_file import Clock, NsysFile, open_export, read_clock
from spark_prof.traces.readers.nsys_import import _QUEUE_NS, Pending, nsys_export
from spark_prof.traces.readers.nsys_scan import chunks
from tests.nsys_files import (
    BEGUN,
    KERNEL,
    MEMCPY,
    MEMSET,
    PID,
    RUNTIME,
    TABLES,
    THREAD,
    Export,
    global_pid,
    global_tid,
)
from tests.rows import each_row

REAL = Path(__file__).parents[3] / "shared" / "traces" / "nsys"


def model_name(name: str) -> bool:
    return name.startswith("model")


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[Foreign, list[Window]]]:
    def read(export: Export | Path, **options: int) -> tuple[Foreign, list[Window]]:
        path = export if isinstance(export, Path) else export.write(tmp_path / "export.sqlite")
        foreign = nsys_export(path, model_name, **options)
        return foreign, list(foreign.windows)

    return read


def work(foreign: Foreign, windows: list[Window]) -> list[tuple[object, ...]]:
    """Process, name, launch time, thread and path of each kernel and copy."""
    rows = []
    for window in windows:
        scopes = foreign.processes[window.process].scopes
        names = window.trace.gpu["name"].tolist()
        placed = zip(names, window.launch_ns, window.thread, window.scope, strict=True)
        rows += [
            (window.process, name, int(launch), int(thread), "/".join(scopes.path(scope)))
            for name, launch, thread, scope in placed
        ]
    return rows


def push(
    export: Export, start: int, end: int | None, text: str, pid: int = PID, **more: object
) -> Export:
    row: dict[str, object] = {"eventType": 59, "text": text, "domainId": 0}
    return export.add(
        "NVTX_EVENTS", start=start, end=end, globalTid=global_tid(pid, THREAD), **(row | more)
    )


@each_row("size", [1, 2, 3, 7])
def test_launches_with_work_are_counted_once_in_windows_of_any_size(size: int) -> None:
    """Of seven calls each other one launches; all but the last have work, some of it twice."""
    pending, numbers = Pending(), np.arange(7)
    work = np.array([0, 0, 1, 2, 3, 3, 4, 5, 99, -1])
    for begin in range(0, 7, size):
        window = numbers[begin : begin + size]
        calls = dict.fromkeys(("correlation", "start", "thread", "scope"), window)
        pending.add(calls | {"launches": window % 2 == 0, "graph": window == 2})
        for _ in range(2):
            has, launches = pending.find(work)
            added = np.isin(work, numbers[: begin + size])
            assert (has == added).all()
            assert (launches["start"][added] == work[added]).all()
        pending.forget(0, begin)
    assert (pending.launches, pending.worked) == (4, 3)
    # A launch without work may still get some, as may that of a graph for a while.
    for now, left in ((7, [2, 6]), (1 + _QUEUE_NS, [2]), (2 + _QUEUE_NS, [])):
        pending.forget(7, now)
        assert np.flatnonzero(pending.find(numbers)[0]).tolist() == left


def test_a_kernel_goes_to_its_own_processs_launch(read: Callable[..., object]) -> None:
    export = Export()
    for pid, device in ((PID, 1), (PID + 1, 0)):
        export.launch(100 + device, 5, pid=pid)
        export.kernel(f"of {pid}", 200, 300, 5, pid=pid, deviceId=device)
        push(export, 50, 150, f"model.{pid}", pid)
    foreign, windows = read(export)
    assert [process.facts["pid"] for process in foreign.processes] == [PID + 1, PID]
    assert [process.rank for process in foreign.processes] == [None, None]
    assert work(foreign, windows) == [
        (0, f"of {PID + 1}", BEGUN + 100, THREAD, f"model.{PID + 1}"),
        (1, f"of {PID}", BEGUN + 101, THREAD, f"model.{PID}"),
    ]


def test_a_kernel_and_its_launch(read: Callable[..., object]) -> None:
    export = Export().launch(100, 3).kernel("gemm<float>", 500, 900, 3, node=77)
    export.add("CUPTI_ACTIVITY_KIND_OVERHEAD", start=10, end=90, globalTid=global_pid(PID) | 1,
               nameId=export.text("Buffer flush"))  # fmt: skip
    trace = read(export)[1][0].trace
    assert trace.gpu.to_dict("records") == [
        {
            "name": "gemm<float>", "kind": "kernel", "start_ns": BEGUN + 500,
            "end_ns": BEGUN + 900, "device": 0, "stream": 7, "correlation": 3, "graph_node": 77,
            "grid": "4,2,1", "block": "128,1,1", "registers": 32, "shared_bytes": 48, "bytes": 0,
            "cubin": "",
        }
    ]  # fmt: skip
    assert trace.launches.to_dict("records") == [
        {
            "name": "cudaLaunchKernel_v7000", "start_ns": BEGUN + 100, "end_ns": BEGUN + 105,
            "thread": THREAD, "correlation": 3,
        }
    ]  # fmt: skip
    assert trace.overhead.to_dict("records") == [
        {"name": "Buffer flush", "start_ns": BEGUN + 10, "end_ns": BEGUN + 90}
    ]


def test_copies_and_sets_are_named_as_torch_names_them(read: Callable[..., object]) -> None:
    place = {"deviceId": 1, "streamId": 13, "globalPid": global_pid(PID)}
    export = Export().add(MEMCPY, start=10, end=20, correlationId=1, bytes=4096, copyKind=1,
                          srcKind=1, dstKind=2, **place)  # fmt: skip
    export.add(MEMSET, start=30, end=31, correlationId=2, bytes=64, memKind=2, **place)
    gpu = read(export)[1][0].trace.gpu
    assert gpu[["name", "kind", "bytes", "device", "stream"]].to_numpy().tolist() == [
        ["Memcpy HtoD (Pinned -> Device)", "memcpy", 4096, 1, 13],
        ["Memset (Device)", "memset", 64, 1, 13],
    ]


def test_columns_that_a_version_does_not_have(read: Callable[..., object]) -> None:
    export = Export().launch(1, 1).kernel("gemm", 10, 20, 1)
    export.columns[KERNEL] = "start end deviceId streamId correlationId globalPid shortName"
    gpu = read(export)[1][0].trace.gpu
    assert gpu[["name", "grid", "graph_node"]].to_numpy().tolist() == [["short", "0,0,0", 0]]


def test_a_view_is_no_table_and_the_file_is_left_as_it_was(tmp_path: Path) -> None:
    path = Export().launch(1, 1).write(tmp_path / "export.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE VIEW {KERNEL} AS SELECT 1 AS start, 2 AS end, 3 AS globalPid")
    connection.close()
    before = path.read_bytes()
    path.chmod(0o400)
    assert all(window.trace.gpu.empty for window in nsys_export(path, model_name).windows)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["export.sqlite"]


def test_what_names_modules(read: Callable[..., object]) -> None:
    """Push/pop ranges of the default domain and of torch's, by text or number, and no other."""
    export = Export()
    push(export, 10, 900, "model")
    push(export, 20, 890, "aten::linear")
    push(export, 25, 880, "model.of torch, seq = 4, op_id = 77", domainId=3)
    push(export, 30, 870, None, textId=export.text("model.registered"))
    push(export, 40, 860, "model.of NCCL", domainId=2)
    push(export, 50, 850, "model.started", eventType=60)
    for number, name in ((2, "NCCL"), (3, "PyTorch")):
        push(export, 1, None, name, eventType=75, domainId=number)
    export.launch(100, 1).kernel("k", 200, 300, 1)
    foreign, windows = read(export)
    path = "model/model.of torch/model.registered"
    assert work(foreign, windows) == [(0, "k", BEGUN + 100, THREAD, path)]
    markers = windows[0].trace.markers
    assert markers[["name", "domain", "nested"]].values.tolist() == [
        ["model", "", True],
        ["aten::linear", "", True],
        ["model.of torch, seq = 4, op_id = 77", "PyTorch", True],
        ["model.registered", "", True],
        ["model.of NCCL", "NCCL", True],
        ["model.started", "", False],
    ]
    calls = windows[0].calls
    assert calls.columns.tolist() == ["scope", "start_ns", "end_ns", "thread"]
    assert calls["start_ns"].tolist() == [BEGUN + 10, BEGUN + 25, BEGUN + 30]


def test_a_range_that_never_ended(read: Callable[..., object]) -> None:
    export = push(Export(), 10, None, "model").launch(100, 1).kernel("k", 200, 300, 1)
    foreign, windows = read(export)
    assert windows[0].trace.markers["end_ns"].tolist() == [BEGUN + 300]
    assert work(foreign, windows)[0][-1] == "model"
    assert "1 NVTX ranges had not ended" in foreign.lost[0]


def random_export(seed: int) -> tuple[Export, list[tuple[object, ...]]]:
    """A shuffled export of two processes, and what `work` shall find in it."""
    source = random.Random(seed)
    export, expected = Export(), []
    for number in range(2):
        pid, now, correlation = PID + number, 0, 1
        for step in range(source.randint(20, 26)):
            push(export, now, now + 1000, "model", pid)
            for layer in range(3):
                begun = now + 10 + layer * 300
                push(export, begun, begun + 250, f"model.layers.{layer}", pid)
                launched = begun + source.randint(1, 240)
                ran = launched + source.choice((20, 500, 60_000))
                export.launch(launched, correlation, pid=pid)
                name = f"k{step}.{layer}"
                export.kernel(name, ran, ran + 9, correlation, pid=pid, deviceId=number)
                path = f"model/model.layers.{layer}"
                expected.append((number, name, BEGUN + launched, THREAD, path))
                export.launch(launched + 5, correlation + 1, "cudaEventRecord_v3020", pid)
                correlation += 2
            now += source.choice((1001, 1500, 40_000))
    for rows in export.rows.values():
        source.shuffle(rows)
    return export, expected


@pytest.mark.slow
@pytest.mark.parametrize("bucket_rows", [1_000_000, 100, 7])
@pytest.mark.parametrize("seed", range(3))
def test_windows_of_any_size_say_the_same(
    read: Callable[..., object], seed: int, bucket_rows: int
) -> None:
    export, expected = random_export(seed)
    foreign, windows = read(export, bucket_rows=bucket_rows)
    assert Counter(work(foreign, windows)) == Counter(expected)
    assert (len(windows) > 2) == (bucket_rows < 1000)
    for table, rows in (("markers", "NVTX_EVENTS"), ("launches", RUNTIME)):
        times = [t for w in windows for t in getattr(w.trace, table)["start_ns"].tolist()]
        assert sorted(times) == sorted(BEGUN + row["start"] for row in export.rows[rows])
    for number in range(2):
        begun = [w.trace.markers["start_ns"] for w in windows if w.process == number]
        assert pd.concat(begun).is_monotonic_increasing
    assert sum(len(window.calls) for window in windows) == len(export.rows["NVTX_EVENTS"])
    assert foreign.lost == []


@pytest.mark.parametrize("table", ["CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"])
@pytest.mark.parametrize("bucket_rows", [1_000_000, 2])
def test_graph_nodes_have_the_scope_of_their_capture(
    read: Callable[..., object], table: str, bucket_rows: int
) -> None:
    export = Export()
    export.columns["CUDA_GRAPH_EVENTS"] = TABLES["CUDA_GRAPH_NODE_EVENTS"]
    push(export, 10, 400, "model")
    for layer in (0, 1):
        push(export, 100 + layer * 100, 190 + layer * 100, f"model.layers.{layer}")
        export.node(150 + layer * 100, 11 + layer, table=table)
        export.node(500, 21 + layer, original=11 + layer, table=table)
        export.node(600, 31 + layer, original=21 + layer, table=table)
    export.node(700, 41, original=42, table=table).node(700, 42, original=41, table=table)
    push(export, 1000, 1100, "model.run").launch(1050, 9, "cudaGraphLaunch_v10000")
    export.kernel("k0", 2000, 2010, 9, node=31).kernel("k1", 2020, 2030, 9, node=32)
    foreign, windows = read(export, bucket_rows=bucket_rows)
    process = foreign.processes[0]
    nodes = process.nodes.set_index("node")
    for layer in (0, 1):
        for node in (11, 21, 31):
            row = nodes.loc[node + layer]
            assert row["original"] == 11 + layer
            assert row["created_ns"] == BEGUN + 150 + layer * 100
            assert process.scopes.path(row["scope"]) == ["model", f"model.layers.{layer}"]
    assert {41, 42} <= set(nodes.index)
    placed = [(name, path) for _, name, _, _, path in work(foreign, windows)]
    assert placed == [("k0", "model.run"), ("k1", "model.run")]
    gpu = pd.concat([window.trace.gpu for window in windows])
    assert gpu["graph_node"].tolist() == [31, 32]


def test_an_export_that_does_not_know_when_it_began(read: Callable[..., object]) -> None:
    export = Export().launch(10, 1).kernel("k", 20, 30, 1)
    del export.rows["TARGET_INFO_SESSION_START_TIME"]
    foreign, windows = read(export)
    assert windows[0].trace.gpu["start_ns"].tolist() == [20]
    assert "session started" in foreign.lost[0]


def test_rows_with_impossible_times_are_left_out(read: Callable[..., object]) -> None:
    export = Export().launch(10, 1).kernel("k", 20, 30, 1).kernel("k", 30, 40, 4)
    export.kernel("ends first", 50, 40, 2).kernel("far", 1 << 61, (1 << 61) + 1, 3)
    foreign, windows = read(export)
    assert [row[1] for row in work(foreign, windows)] == ["k", "k"]
    assert any(f"2 of 4 rows of {KERNEL} left out" in line for line in foreign.lost)


def test_processes_without_work_on_a_gpu(read: Callable[..., object]) -> None:
    export = Export().launch(10, 1).kernel("k", 20, 30, 1).launch(10, 1, "cudaGetDevice", PID + 1)
    foreign, _ = read(export)
    assert [process.facts["pid"] for process in foreign.processes] == [PID]
    assert any(line.endswith(f"left out: {PID + 1}") for line in foreign.lost)


def test_texts_that_are_no_texts(read: Callable[..., object], tmp_path: Path) -> None:
    path = push(Export(), 5, 15, "model").launch(10, 1).kernel("k", 20, 30, 1)
    path = path.write(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = x'6dff'")
        connection.execute("UPDATE StringIds SET value = x'fffe' WHERE value = 'k'")
        connection.execute(f"UPDATE {RUNTIME} SET nameId = 'no number'")
    foreign, windows = read(path)
    assert [row[1] for row in work(foreign, windows)] == ["\ufffd\ufffd"]
    assert windows[0].trace.markers["name"].tolist() == ["m\ufffd"]


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder shared/traces is not there")
def test_a_real_export_sums_to_what_nvidias_own_tool_says(read: Callable[..., object]) -> None:
    reference = REAL.parent / "nsys_stats_2023.4" / "h100_2gpu_1s_cuda_gpu_kern_sum.csv.gz"
    with gzip.open(reference, "rt") as file:
        wanted = {
            row["Name"]: (int(row["Total Time (ns)"]), int(row["Instances"]))
            for row in csv.DictReader(file)
        }
    gpu = pd.concat(
        [w.trace.gpu.astype({"name": "str"}) for w in read(REAL / "h100_2gpu_1s.sqlite")[1]]
    )
    kernels = gpu[gpu["kind"] == "kernel"]
    spent = (kernels["end_ns"] - kernels["start_ns"]).groupby(kernels["name"]).agg(["sum", "count"])
    assert len(wanted) == 41
    assert {name: (row["sum"], row["count"]) for name, row in spent.iterrows()} == wanted


SECOND = 1_000_000_000


def clock_of(export: Export, tmp_path: Path) -> Clock:
    path = export.write(tmp_path / "export.sqlite")
    with open_export(path) as opened:
        return read_clock(opened)


def epoch(clock: Clock, *times: int) -> list[int]:
    return [int(time) for time in clock.to_epoch(np.array(times, np.int64))]


@pytest.mark.parametrize("registered", [False, True])
def test_a_drift_is_followed_from_mark_to_mark(tmp_path: Path, registered: bool) -> None:
    export = Export()
    # The export's clock loses 20 us a second, then 50.
    for time, ahead in ((1 * SECOND, 0), (11 * SECOND, 200_000), (21 * SECOND, 700_000)):
        export.mark(time, f"{CLOCK_MARK}{BEGUN + time + ahead}", registered=registered)
    clock = clock_of(export, tmp_path)
    assert clock.marked
    assert epoch(clock, 1 * SECOND) == [BEGUN + SECOND]
    assert epoch(clock, 6 * SECOND) == [BEGUN + 6 * SECOND + 100_000]
    assert epoch(clock, 16 * SECOND) == [BEGUN + 16 * SECOND + 450_000]
    assert epoch(clock, 0, 99 * SECOND) == [BEGUN, BEGUN + 99 * SECOND + 700_000]


def test_of_a_burst_the_soonest_mark_counts(tmp_path: Path) -> None:
    export = Export()
    for named, late in ((100, 900), (2_000, 15), (4_000, 50_000)):
        export.mark(named + late, f"{CLOCK_MARK}{BEGUN + named}")
    assert epoch(clock_of(export, tmp_path), 0) == [BEGUN - 15]


@each_row("text", ["spark_prof clock", "spark_prof clock -5", "clock 5", "", "9" * 30])
def test_marks_of_others_are_no_clock(tmp_path: Path, text: str) -> None:
    assert not clock_of(Export().mark(5, text).mark(9, f"{CLOCK_MARK}{'9' * 30}"), tmp_path).marked


MARK = f"spark_prof clock {BEGUN + 1}"


@each_row(
    ("without", "says"),
    [
        (KERNEL, "has no GPU kernels of this process"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "no CUDA API calls"),
        ("CUDA_GRAPH_NODE_EVENTS", "does not show how the CUDA graphs were captured"),
        ("NVTX_EVENTS", "no clock marks"),
    ],
)
def test_what_a_report_lacks(tmp_path: Path, without: str, says: str) -> None:
    export = Export().mark(1, MARK).launch(1, 1).node(1, 7).kernel("gemm", 2, 3, 1, node=7)
    path = export.write(tmp_path / "export.sqlite")
    assert nsys_lacks(path, PID) == ()
    path.unlink()
    del export.rows[without]
    (line,) = nsys_lacks(export.write(path), PID)
    assert says in line


def test_nsys_own_warnings(tmp_path: Path) -> None:
    export = Export().mark(1, MARK).launch(1, 1).kernel("gemm", 2, 3, 1)
    for severity, text, pid in (
        (1, "all is well", PID),
        (2, "Not all CUDA events\nmight have been collected.", PID),
        (3, "others only", PID + 1),
        (3, "x" * 5000, None),
    ):
        owner = None if pid is None else global_pid(pid)
        export.add("DIAGNOSTIC_EVENT", severity=severity, text=text, globalPid=owner)
    lines = nsys_lacks(export.write(tmp_path / "export.sqlite"), PID)
    assert lines[0] == "nsys: Not all CUDA events might have been collected."
    assert lines[1] == f"nsys: {'x' * 200}"
    assert len(lines) == 2


def test_tables_without_rows_are_read(
    read: Callable[..., tuple[Foreign, list[Window]]],
) -> None:
    """They are there with `nsys export --lazy=false`."""
    export = Export().launch(100, 1).kernel("k", 200, 300, 1)
    export.rows = {table: [] for table in TABLES} | export.rows
    foreign, windows = read(export)
    assert work(foreign, windows) == [(0, "k", BEGUN + 100, THREAD, "")]


@each_row(
    ("numbers", "sizes"),
    [
        (range(1, 26), [9, 9, 9]),
        (range(1001, 1026), [9, 9, 9]),
        ([1, 1 << 40], [1 << 28] * 4096),
        ([], []),
    ],
)
def test_a_table_is_cut_by_how_far_its_rows_numbers_reach(
    numbers: Sequence[int], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_prof.traces.readers.nsys_scan._CHUNK_ROWS", 10)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE events (start)")
        sql = "INSERT INTO events (rowid, start) VALUES (?, ?)"
        connection.executemany(sql, [(number, number) for number in numbers])
        cut = chunks(NsysFile(connection, Path("export.sqlite")), "events", {"start": 0})
        assert [chunk.rows for chunk in cut] == sizes
        starts = [start for chunk in cut for (start,) in connection.execute(chunk.sql)]
        assert starts == list(numbers)
