"""Kineto traces written by hand, whole, damaged and hostile."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Trace
from spark_prof.traces.readers.kineto import read_kineto
from tests.rows import each_row
from tests.support import ORIGIN, THREAD, event, kernel, kineto, operator


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str | bytes], Trace]:
    def reader(text: str | bytes) -> Trace:
        path = tmp_path / "trace.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_kineto(path)

    return reader


def stretches(trace: Trace) -> list[tuple[str, int, int, int]]:
    rows = trace.operators.assign(
        start=trace.operators["start_ns"] - ORIGIN, end=trace.operators["end_ns"] - ORIGIN
    )
    columns = ["name", "part", "start", "end"]
    return list(rows.sort_values(["start", "end"])[columns].itertuples(index=False, name=None))


def test_a_kernel_and_its_launch(read: Any) -> None:
    trace = read(
        kineto(
            kernel("gemm", 500, 900, 3, 100, grid=[4, 2, 1], block=[128, 1, 1],
                   **{"registers per thread": 64, "shared memory": 1024, "graph node id": 77})
        )
    )  # fmt: skip
    assert trace.gpu.to_dict("records") == [
        {
            "name": "gemm", "kind": "kernel", "start_ns": ORIGIN + 500, "end_ns": ORIGIN + 900,
            "device": 0, "stream": 7, "correlation": 3, "graph_node": 77, "grid": "4,2,1",
            "block": "128,1,1", "registers": 64, "shared_bytes": 1024, "bytes": 0,
            "cubin": "",
        }
    ]  # fmt: skip
    assert trace.launches.to_dict("records") == [
        {"name": "cudaLaunchKernel", "start_ns": ORIGIN + 100, "end_ns": ORIGIN + 101,
         "thread": THREAD, "correlation": 3}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("category", "kind"), [("gpu_memcpy", "memcpy"), ("gpu_memset", "memset"), ("kernel", "kernel")]
)
def test_kinds(read: Any, category: str, kind: str) -> None:
    trace = read(kineto(event(category, "Memcpy HtoD", 1, 5, 7, bytes=4096, correlation=1)))
    assert trace.gpu[["kind", "bytes"]].to_numpy().tolist() == [[kind, 4096]]


@pytest.mark.parametrize(
    ("name", "correlation", "kept"),
    [
        ("cudaLaunchKernel", 50, True),
        ("cudaGraphLaunch", 50, True),
        ("cudaMemcpyAsync", 50, True),
        ("cudaMemsetAsync", 50, True),
        ("cudaStreamSynchronize", 50, False),
        ("cuSomethingNew", 1, True),  # a kernel says that this call started it
    ],
)
def test_only_calls_that_start_work_are_launches(
    read: Any, name: str, correlation: int, kept: bool
) -> None:
    gpu = event("kernel", "k", 10, 20, 7, correlation=1)
    api = event("cuda_driver", name, 1, 2, correlation=correlation)
    assert (name in read(kineto(gpu, api)).launches["name"].tolist()) is kept


def test_every_kernel_of_a_graph_has_the_launch_of_the_graph(read: Any) -> None:
    trace = read(
        kineto(
            event("cuda_runtime", "cudaGraphLaunch", 1, 2, correlation=9),
            *(event("kernel", f"k{i}", 10 * i, 10 * i + 5, 7, correlation=9) for i in range(1, 4)),
        )
    )
    assert trace.gpu["correlation"].tolist() == [9, 9, 9]
    assert len(trace.launches) == 1


def test_an_operator_that_calls_others_has_one_stretch_per_time_of_its_own(read: Any) -> None:
    trace = read(
        kineto(operator("linear", 0, 100), operator("t", 10, 20), operator("addmm", 30, 90))
    )
    assert stretches(trace) == [
        ("linear", 0, 0, 10), ("t", 0, 10, 20), ("linear", 1, 20, 30), ("addmm", 0, 30, 90),
        ("linear", 2, 90, 100),
    ]  # fmt: skip


def test_an_operator_of_no_length_is_still_one_call(read: Any) -> None:
    trace = read(kineto(operator("a", 0, 10), operator("view", 5, 5), operator("b", 10, 10)))
    calls = [name for name, part, *_ in stretches(trace) if part == 0]
    assert sorted(calls) == ["a", "b", "view"]


def _union(intervals: list[tuple[int, int]]) -> int:
    return len({moment for start, end in intervals for moment in range(start, end)})


@each_row("seed", range(12))
def test_stretches_never_overlap_and_sum_to_the_union(read: Any, seed: int) -> None:
    chosen = random.Random(seed)
    intervals = []
    for _ in range(40):
        start = chosen.randrange(200)
        intervals.append((start, start + chosen.randrange(40)))
    trace = read(kineto(*(operator(f"op{i}", *times) for i, times in enumerate(intervals))))
    found = stretches(trace)
    for (*_, end), (_, _, start, _) in pairwise(found):
        assert end <= start
    assert sum(end - start for *_, start, end in found) == _union(intervals)
    assert sorted(name for name, part, *_ in found if part == 0) == sorted(
        f"op{i}" for i in range(40)
    )


def test_threads_do_not_interrupt_each_other(read: Any) -> None:
    trace = read(kineto(operator("a", 0, 10, tid=1), operator("b", 5, 15, tid=2)))
    assert stretches(trace) == [("a", 0, 0, 10), ("b", 0, 5, 15)]
    assert sorted(trace.operators["thread"]) == [1, 2]


@each_row("around", [0, 4_370_000_000_000, 4_450_000_000_000, 7_900_000_000_000])
def test_times_are_exact_to_the_nanosecond(read: Any, around: int) -> None:
    chosen = random.Random(around)
    wanted = sorted(around * 1000 + chosen.randrange(10**9) for _ in range(500))
    events = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","ts":{ns // 1000}.{ns % 1000:03},"dur":0.001}}'
        for ns in wanted
    )
    trace = read(f'{{"baseTimeNanoseconds":{ORIGIN},"traceEvents":[{events}]}}')
    assert (trace.gpu["start_ns"] - ORIGIN).tolist() == wanted
    assert (trace.gpu["end_ns"] - trace.gpu["start_ns"]).unique().tolist() == [1]


WHOLE = kineto(kernel("gemm", 500, 900, 3, 100))


@each_row(
    "text",
    [
        "", "[]", "{}", "null", "7", '"x"', WHOLE[:-10], WHOLE[: len(WHOLE) // 2], "PK\x03\x04",
        '{"traceEvents": 3}', '{"traceEvents": {"a": 1}}', '{"traceEvents": null}',
        '{"traceEvents": [], "baseTimeNanoseconds": "soon"}',
        '{"traceEvents": [], "baseTimeNanoseconds": null}',
        '{"traceEvents": [], "baseTimeNanoseconds": 1e400}',
        '{"traceEvents": [], "baseTimeNanoseconds": 99999999999999999999999}',
        '{"traceEvents": [{"ph": "X", "ts": NaN}]}', "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_whole_trace_is_refused_in_one_line(read: Any, text: str) -> None:
    with pytest.raises(CommandError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        read_kineto(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        {"name": None}, {"name": 7}, {"ts": "soon"}, {"ts": None}, {"ts": 1e300}, {"dur": "long"},
        {"dur": -1}, {"dur": None}, {"dur": 1e300}, {"cat": ["kernel"]}, {"cat": None},
        {"ph": None},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("category", ["kernel", "cuda_runtime", "cpu_op"])
def test_events_without_name_or_time_are_skipped(
    read: Any, category: str, damage: dict[str, Any]
) -> None:
    bad = event(category, "cudaLaunchKernel", 1, 2, correlation=8) | damage
    missing = {key: value for key, value in bad.items() if value is not None}
    trace = read(kineto(bad, missing | {"ph": "X", "dur": -1}, kernel("gemm", 500, 900, 3, 100)))
    assert trace.gpu["name"].tolist() == ["gemm"]
    assert len(trace.launches) == 1
    assert trace.operators.empty


@each_row("value", ["7", None, 1.5, [], {}, 2**40, 2**70, -(2**70)])
def test_arguments_of_a_wrong_kind_become_the_default(read: Any, value: object) -> None:
    names = ("device", "registers per thread", "shared memory")
    trace = read(kineto(event("kernel", "k", 1, 2, 7, **dict.fromkeys(names, value))))
    assert trace.gpu[["device", "registers", "shared_bytes"]].to_numpy().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("arguments", [None, 3, "x", ["correlation"]], ids=repr)
@pytest.mark.parametrize("category", ["kernel", "cuda_runtime"])
def test_events_without_arguments(read: Any, category: str, arguments: object) -> None:
    trace = read(kineto(event(category, "cudaLaunchKernel", 1, 2) | {"args": arguments}))
    rows = trace.gpu if category == "kernel" else trace.launches
    assert rows["correlation"].tolist() == [-1]


@each_row("tid", ["worker", None, 1.5, 2**80])
def test_a_thread_without_a_number(read: Any, tid: object) -> None:
    trace = read(kineto(operator("a", 0, 10, tid=tid)))
    assert trace.operators["thread"].tolist() == [-1]


@each_row("odd", [None, 3, "x", [], {}])
def test_things_that_are_no_events_are_skipped(read: Any, odd: object) -> None:
    assert read(kineto(odd if not isinstance(odd, list) else [odd])).gpu.empty


def test_a_trace_of_nothing_is_empty(read: Any) -> None:
    trace = read('{"traceEvents": []}')
    assert trace.gpu.empty
    assert trace.launches.empty
    assert trace.operators.empty
