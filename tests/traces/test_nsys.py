"""What one process ran, read from nsys exports written by hand, damaged, hostile and real."""

from __future__ import annotations

import csv
import gzip
import hashlib
import random
import sqlite3
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Trace
from spark_prof.traces.readers.nsys import nsys_trace
from spark_prof.traces.readers.nsys_file import index_export
from spark_prof.traces.readers.nsys_work import WHOLE_GRAPH
from tests.nsys_files import BEGUN, GRAPH, KERNEL, MEMCPY, MEMSET, PID, THREAD, Export, global_pid

REAL = Path(__file__).parents[3] / "shared" / "traces"
ALWAYS = (0, 1 << 61)


def read(export: Export, tmp_path: Path, start: int = 0, end: int = 10_000) -> Trace:
    path = export.write(tmp_path / "export.sqlite")
    return nsys_trace(path, PID, BEGUN + start, BEGUN + end)


def test_a_kernel_and_its_launch(tmp_path: Path) -> None:
    trace = read(Export().launch(100, 3).kernel("gemm<float>", 500, 900, 3, node=77), tmp_path)
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
    assert trace.lost == ()


def test_copies_and_sets_are_named_as_torch_names_them(tmp_path: Path) -> None:
    export = Export().launch(1, 1, "cudaMemcpyAsync_v3020").launch(2, 2, "cudaMemsetAsync_v3020")
    place = {"deviceId": 1, "streamId": 13, "globalPid": global_pid(PID)}
    export.add(MEMCPY, start=10, end=20, correlationId=1, bytes=4096, copyKind=1, srcKind=1,
               dstKind=2, **place)  # fmt: skip
    export.add(MEMSET, start=30, end=31, correlationId=2, bytes=64, memKind=2, **place)
    trace = read(export, tmp_path)
    assert trace.gpu[["name", "kind", "bytes", "device", "stream"]].to_numpy().tolist() == [
        ["Memcpy HtoD (Pinned -> Device)", "memcpy", 4096, 1, 13],
        ["Memset (Device)", "memset", 64, 1, 13],
    ]


def test_another_process_with_the_same_correlation(tmp_path: Path) -> None:
    export = Export().launch(1, 5).kernel("mine", 10, 20, 5)
    export.launch(2, 5, pid=PID + 1).kernel("theirs", 11, 21, 5, pid=PID + 1)
    trace = read(export, tmp_path)
    assert trace.gpu["name"].tolist() == ["mine"]
    assert trace.launches["start_ns"].tolist() == [BEGUN + 1]


def test_work_belongs_to_where_it_was_launched(tmp_path: Path) -> None:
    export = Export().launch(50, 1).kernel("launched before", 110, 120, 1)
    export.launch(150, 2).kernel("inside", 160, 170, 2)
    export.launch(190, 3).kernel("queued", 450, 460, 3)
    export.launch(250, 4).kernel("launched after", 260, 270, 4)
    trace = read(export, tmp_path, 100, 200)
    assert trace.gpu["name"].tolist() == ["inside", "queued"]
    assert trace.launches["correlation"].tolist() == [2, 3]
    assert trace.lost == ()


@pytest.mark.parametrize("indexed", [False, True])
def test_two_stretches_share_no_kernel(tmp_path: Path, indexed: bool) -> None:
    export = Export()
    for number in range(100):
        export.launch(number * 10, number).kernel(f"k{number}", number * 10 + 400, 9000, number)
    path = export.write(tmp_path / "export.sqlite")
    if indexed:
        index_export(path)
    parts = [nsys_trace(path, PID, BEGUN + a, BEGUN + b) for a, b in ((0, 499), (500, 999))]
    assert [len(part.gpu) for part in parts] == [50, 50]
    assert set(parts[0].gpu["name"]).isdisjoint(parts[1].gpu["name"])


def test_work_without_a_launch_counts_by_its_own_time(tmp_path: Path) -> None:
    export = Export().launch(1, 1).kernel("known", 10, 20, 1)
    export.kernel("inside", 30, 40, None).kernel("outside", 20_000, 20_001, None)
    trace = read(export, tmp_path)
    assert trace.gpu["name"].tolist() == ["known", "inside"]
    assert trace.gpu["correlation"].tolist() == [1, -1]
    assert "1 kernels and copies have no launch" in trace.lost[0]


def test_graphs_that_were_traced_as_a_whole(tmp_path: Path) -> None:
    export = Export().launch(5, 1, "cudaGraphLaunch_v10000").launch(6, 2, "cudaGraphLaunch_v10000")
    for correlation in (1, 2):
        export.add(GRAPH, start=10, end=500, deviceId=0, streamId=7, correlationId=correlation,
                   globalPid=global_pid(PID), graphId=3)  # fmt: skip
    trace = read(export, tmp_path)
    assert trace.gpu["name"].tolist() == [WHOLE_GRAPH] * 2
    assert trace.gpu["end_ns"].max() == BEGUN + 500
    (line,) = trace.lost
    assert line.startswith("2 CUDA graph launches were traced as a whole")
    for missing in ("names", "layers", "components", "--cuda-graph-trace=node"):
        assert missing in line


def test_launches_whose_kernels_are_missing(tmp_path: Path) -> None:
    export = Export().kernel("only", 500, 600, 1)
    for correlation in range(1, 11):
        export.launch(correlation, correlation)
    assert "9 of 10 launches have no kernel" in read(export, tmp_path).lost[0]


def test_calls_that_launch_nothing_are_left_out(tmp_path: Path) -> None:
    export = Export().launch(1, 1, "cudaStreamSynchronize_v3020").launch(2, 2)
    trace = read(export.kernel("gemm", 10, 20, 2), tmp_path)
    assert trace.launches["correlation"].tolist() == [2]
    assert trace.lost == ()


def test_the_profilers_own_cost(tmp_path: Path) -> None:
    export = Export()
    export.add("CUPTI_ACTIVITY_KIND_OVERHEAD", start=10, end=90, globalTid=global_pid(PID) | 1,
               nameId=export.text("Buffer flush"))  # fmt: skip
    overhead = read(export, tmp_path).overhead
    assert overhead.to_dict("records") == [
        {"name": "Buffer flush", "start_ns": BEGUN + 10, "end_ns": BEGUN + 90}
    ]


def test_an_export_without_any_cuda_table(tmp_path: Path) -> None:
    trace = read(Export(), tmp_path)
    assert trace.gpu.empty
    assert trace.launches.empty
    assert trace.overhead.empty


def test_columns_that_a_version_does_not_have(tmp_path: Path) -> None:
    export = Export().launch(1, 1).kernel("gemm", 10, 20, 1)
    export.columns[KERNEL] = "start end deviceId streamId correlationId globalPid shortName"
    trace = read(export, tmp_path)
    assert trace.gpu[["name", "grid", "graph_node"]].to_numpy().tolist() == [["short", "0,0,0", 0]]


def test_no_session_start_is_said(tmp_path: Path) -> None:
    export = Export().launch(1, 1)
    del export.rows["TARGET_INFO_SESSION_START_TIME"]
    with pytest.raises(CommandError, match="does not say when its session started"):
        read(export, tmp_path)


def test_values_of_the_wrong_type(tmp_path: Path) -> None:
    export = Export().launch(1, 1)
    export.kernel("gemm", 10, 20, 1, gridX="a\n'; DROP TABLE x", registersPerThread=b"\xff\xfe")
    export.kernel("big", 10, 20, 1, staticSharedMemory=(1 << 63) - 1)
    trace = read(export, tmp_path)
    assert trace.gpu["grid"].tolist()[0] == "0,2,1"
    assert trace.gpu["registers"].tolist()[0] == 0


def test_a_view_is_no_table(tmp_path: Path) -> None:
    path = Export().launch(1, 1).write(tmp_path / "export.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE VIEW {KERNEL} AS SELECT 1 AS start, 2 AS end, 3 AS globalPid")
    connection.close()
    assert nsys_trace(path, PID, *ALWAYS).gpu.empty


def test_the_file_is_left_as_it_was(tmp_path: Path) -> None:
    path = Export().launch(1, 1).kernel("gemm", 10, 20, 1).write(tmp_path / "export.sqlite")
    path.chmod(0o400)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    nsys_trace(path, PID, *ALWAYS)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [file.name for file in tmp_path.iterdir()] == ["export.sqlite"]


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 200])
def test_a_file_that_is_no_export(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "export.sqlite"
    path.write_bytes(content)
    with pytest.raises(CommandError) as caught:
        nsys_trace(path, PID, *ALWAYS)
    assert "\n" not in str(caught.value)
    with pytest.raises(CommandError):
        nsys_trace(tmp_path / "missing", PID, *ALWAYS)


def test_damage_is_a_line_never_a_traceback(tmp_path: Path) -> None:
    export = Export().mark(5, "spark_prof clock 12")
    for number in range(300):
        export.launch(number, number).kernel(f"k{number % 7}", number + 400, 9000, number)
    whole = export.write(tmp_path / "whole.sqlite").read_bytes()
    chance = random.Random(3)
    path = tmp_path / "damaged.sqlite"
    outcomes = set()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 40)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.randint(1, len(damaged))])
        try:
            outcomes.add(len(nsys_trace(path, PID, *ALWAYS).gpu) <= 300)
        except CommandError:
            outcomes.add("refused")
    assert outcomes <= {True, "refused"}
    assert "refused" in outcomes


def _all_processes(name: str, pids: tuple[int, ...]) -> list[Trace]:
    path = REAL / "nsys" / f"{name}.sqlite"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return [nsys_trace(path, pid, *ALWAYS) for pid in pids]


def test_a_real_export_sums_to_what_nvidias_own_tool_says() -> None:
    traces = _all_processes("h100_2gpu_1s", (111, 112))
    reference = REAL / "nsys_stats_2023.4" / "h100_2gpu_1s_cuda_gpu_kern_sum.csv.gz"
    with gzip.open(reference, "rt") as file:
        wanted = {
            row["Name"]: (int(row["Total Time (ns)"]), int(row["Instances"]))
            for row in csv.DictReader(file)
        }
    found: dict[str, tuple[int, int]] = {}
    for trace in traces:
        kernels = trace.gpu[trace.gpu["kind"] == "kernel"]
        for row in kernels.itertuples():
            total, count = found.get(row.name, (0, 0))
            found[row.name] = (total + row.end_ns - row.start_ns, count + 1)
    assert len(wanted) == 41
    assert found == wanted


@pytest.mark.parametrize(
    ("name", "pids", "joined"),
    # Without the process, correlation numbers join 4 280 rows of the second.
    [("h100_2gpu_1s", (111, 112), 1632), ("mfu_2gpu_before", (144, 145), 3986)],
)
def test_real_exports_join_kernels_and_launches(
    name: str, pids: tuple[int, ...], joined: int
) -> None:
    found = 0
    for trace in _all_processes(name, pids):
        kernels = trace.gpu[trace.gpu["kind"] == "kernel"]
        found += int(kernels["correlation"].isin(trace.launches["correlation"]).sum())
    assert found == joined
