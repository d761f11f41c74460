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


@each_row("text", ["[]", '{"traceEvents": [{"ph": "X", "ts": NaN}]}', kineto()[:-10]])
def test_what_no_recording_wrote_is_refused_in_one_line(read: Any, text: str) -> None:
    with pytest.raises(CommandError, match="not a whole Kineto trace") as caught:
        read(text)
    assert "\n" not in str(caught.value)
