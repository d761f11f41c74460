"""Reading pieces of raw CUPTI buffers: rows, what is missing, and files of any damage."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Trace
from spark_prof.traces.readers.cupti_trace import read_cupti
from tests.rows import each_row

from .cupti_buffers import VERSIONS, block, other, records

KERNEL, COPY, FILL, PEER, RUNTIME, DRIVER, OVERHEAD = 10, 1, 2, 22, 5, 4, 17
GEMM, NORM = 0x7F00_0000_1000, 0x7F00_0000_2000
OFFSET = 1_800_000_000_000_000_000

Read = Callable[..., Trace]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(*blocks: bytes, names: Any = None, keep: int | None = None) -> Trace:
        path, beside = tmp_path / "rank0.00003.activity.bin", tmp_path / "rank0.00003.names.json"
        path.write_bytes(b"".join(blocks)[:keep])
        content = {"clock_offset_ns": OFFSET, "names": {str(GEMM): "gemm", str(NORM): "norm"}}
        beside.write_text(names if isinstance(names, str) else json.dumps(names or content))
        return read_cupti(path, beside)

    return run


def kernel(count: int = 1, **fields: Any) -> Any:
    return records(KERNEL, count, **{"name": GEMM} | fields)


@each_row("version", VERSIONS)
def test_a_kernel_of_every_version(read: Read, version: int) -> None:
    rows = records(
        KERNEL, version=version, name=NORM, start=5000, end=7000, deviceId=3, streamId=27,
        correlationId=81, graphNodeId=2**40 + 5, gridX=2**31 - 1, gridY=65535, gridZ=7,
        blockX=1024, blockY=2, blockZ=1, registersPerThread=168, staticSharedMemory=1000,
        dynamicSharedMemory=200_000,
    )  # fmt: skip
    trace = read(block(rows, version=version))
    assert trace.gpu.astype(object).iloc[0].to_dict() == {
        "name": "norm", "kind": "kernel", "start_ns": OFFSET + 5000, "end_ns": OFFSET + 7000,
        "device": 3, "stream": 27, "correlation": 81, "graph_node": 2**40 + 5,
        "grid": "2147483647,65535,7", "block": "1024,2,1", "registers": 168,
        "shared_bytes": 201_000, "bytes": 0, "cubin": "",
    }  # fmt: skip
    assert trace.lost == ()


@each_row("version", VERSIONS)
def test_kinds_that_are_not_read_are_stepped_over(read: Read, version: int) -> None:
    skipped = [8, 9, 11, 12, 13, 26, 27, 37, 38, 39, 45, 49, 52]
    parts = [p for k in skipped for p in (other(k, version), records(KERNEL, version=version))]
    trace = read(block(*parts, version=version))
    assert len(trace.gpu) == len(skipped)


@each_row(
    ("kind", "fields", "name"),
    [
        (COPY, {"copyKind": 1, "srcKind": 2, "dstKind": 3}, "Memcpy HtoD (Pinned -> Device)"),
        (COPY, {"copyKind": 2, "srcKind": 3, "dstKind": 1}, "Memcpy DtoH (Device -> Pageable)"),
        (COPY, {"copyKind": 8, "srcKind": 3, "dstKind": 3}, "Memcpy DtoD (Device -> Device)"),
        (COPY, {"copyKind": 99, "srcKind": 9, "dstKind": 0}, "Memcpy Unknown (Unknown -> Unknown)"),
        (PEER, {"copyKind": 10, "srcKind": 3, "dstKind": 3}, "Memcpy PtoP (Device -> Device)"),
        (FILL, {"memoryKind": 3}, "Memset (Device)"),
        (FILL, {"memoryKind": 0xFFFF}, "Memset (Unknown)"),
    ],
)
@each_row("version", VERSIONS)
def test_copies_and_fills(read: Read, version: int, kind: int, fields: Any, name: str) -> None:
    row = records(
        kind, version=version, bytes=2**33, deviceId=1, streamId=2, correlationId=3, graphNodeId=4,
        **fields,
    )  # fmt: skip
    trace = read(block(row, version=version))
    found = trace.gpu.astype(object).iloc[0]
    assert found["name"] == name
    assert found["kind"] == ("memset" if kind == FILL else "memcpy")
    assert (found["bytes"], found["grid"], found["block"]) == (2**33, "", "")
    assert tuple(found[["device", "stream", "correlation", "graph_node"]]) == (1, 2, 3, 4)
    assert trace.lost == ()


def test_calls_that_launch(read: Read) -> None:
    trace = read(
        block(
            records(DRIVER, cbid=307, start=11, end=12, threadId=9, correlationId=6),
            records(RUNTIME, cbid=211, start=10, end=20, threadId=9, correlationId=6),
            records(RUNTIME, cbid=311, start=30, end=40, threadId=2**32 - 1, correlationId=7),
            records(RUNTIME, cbid=7, start=50, end=60, correlationId=8),
            records(DRIVER, cbid=999, start=70, end=80, correlationId=9),
            records(48, cbid=0, start=90, end=91, correlationId=10),
            kernel(correlationId=9),
        )
    )
    found = trace.launches.astype({"name": object})
    assert found["name"].tolist() == [
        "cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuda_driver_999",
        "driver's own launch",
    ]  # fmt: skip
    assert found["thread"].tolist()[:3] == [9, 9, 2**32 - 1]
    assert found["start_ns"].tolist() == [OFFSET + t for t in (10, 11, 30, 70, 90)]


def test_kernels_that_differ_only_in_one_size(read: Read) -> None:
    shapes = [(x, y, z, a, b, s) for x in (1, 2) for y in (1, 2) for z in (1, 2)
              for a in (32, 64) for b in (1, 2) for s in (0, 512)]  # fmt: skip
    rows = [
        kernel(gridX=x, gridY=y, gridZ=z, blockX=a, blockY=b, blockZ=1, dynamicSharedMemory=s)
        for x, y, z, a, b, s in shapes * 3
    ]
    gpu = read(block(*rows)).gpu
    assert gpu["grid"].tolist() == [f"{x},{y},{z}" for x, y, z, *_ in shapes * 3]
    assert gpu["block"].tolist() == [f"{a},{b},1" for *_, a, b, _ in shapes * 3]
    assert gpu["shared_bytes"].tolist() == [s for *_, s in shapes * 3]


@each_row(
    "names",
    ["", "{", "[]", "{}", '{"names": {"x": "a"}, "clock_offset_ns": 0}',
     '{"names": [], "clock_offset_ns": 0}', '{"names": {}, "clock_offset_ns": 1e99}',
     '{"names": {}, "clock_offset_ns": null}'],
)  # fmt: skip
def test_without_names_the_kernels_stay(read: Read, names: str) -> None:
    trace = read(block(kernel(3)), names=names)
    assert trace.gpu["name"].tolist() == [""] * 3
    assert trace.gpu["start_ns"].tolist() == [1000] * 3
    assert trace.lost[0].startswith("rank0.00003.names.json cannot be used")


@each_row("times", [(0, 0), (5, 0), (9, 8), (1, 2**63), (2**64 - 1, 2**64 - 1)])
@each_row("kind", [KERNEL, COPY, RUNTIME, OVERHEAD])
def test_records_without_a_time_are_left_out(read: Read, kind: int, times: Any) -> None:
    bad = records(kind, 2, start=times[0], end=times[1])
    trace = read(block(kernel(), bad, kernel()))
    assert len(trace.gpu) == 2
    assert trace.launches.empty
    assert trace.overhead.empty
    assert trace.lost == ("2 records have no time and were left out",)


def test_dropped_records_and_whole_graphs_are_told(read: Read) -> None:
    trace = read(block(kernel(), dropped=2), block(other(51), other(51), dropped=17))
    assert trace.lost == (
        "CUPTI dropped 17 records since the process began to record",
        "2 CUDA graphs were recorded whole, without their kernels",
    )


def test_a_file_cut_off_anywhere_keeps_its_whole_buffers(read: Read) -> None:
    one, two = block(kernel(3)), block(kernel(2), records(COPY))
    edges = {len(one), len(one) + 31, len(one) + 32, len(one) + len(two)}
    for keep in {*range(0, len(one) + len(two), 9), *edges}:
        trace = read(one, two, keep=keep)
        whole = 6 if keep == len(one) + len(two) else 3 if keep >= len(one) else 0
        assert len(trace.gpu) == whole
        assert bool(trace.lost) == (keep not in (0, len(one), len(one) + len(two)))


def test_an_unknown_kind_ends_its_buffer_only(read: Read) -> None:
    trace = read(block(kernel(3), b"\x3f" + bytes(39), kernel(5)), block(kernel(2)))
    assert len(trace.gpu) == 5
    assert trace.lost == (
        "rank0.00003.activity.bin: 1120 bytes of a buffer were skipped, no record is of kind 63",
    )


@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_a_buffer_that_says_it_is_huge(read: Read, size: int) -> None:
    header = block(version=130001)[:16] + size.to_bytes(8, "little") + bytes(8)
    trace = read(block(kernel(3)), header, bytes(1000))
    assert len(trace.gpu) == 3
    assert "was cut off" in trace.lost[0]


@pytest.mark.parametrize("content", [b"x" * 40, bytes(64), block(kernel(), version=21)])
def test_files_that_are_refused(read: Read, content: bytes) -> None:
    with pytest.raises(CommandError, match=r"CUPTI buffers|older than CUDA 12\.4"):
        read(content)


def test_a_library_from_the_future(read: Read) -> None:
    rows = records(KERNEL, 100, version=max(VERSIONS), name=GEMM)
    future = 150000
    assert len(read(block(rows, version=future)).gpu) == 100
    longer = np.zeros((100, 256), np.uint8)
    longer[:, : rows.itemsize] = rows.view(np.uint8).reshape(100, -1)
    with pytest.raises(CommandError, match="install a newer spark-prof"):
        read(block(longer, version=future))


def test_records_that_are_all_different_take_bounded_memory(read: Read) -> None:
    dice = np.random.default_rng(0)
    parts = []
    for number in range(10_000):
        kind = (KERNEL, RUNTIME, DRIVER, COPY)[int(dice.integers(4))]
        fields = {"name": number, "gridX": number} if kind == KERNEL else {}
        parts.append(records(kind, **fields))
    content = block(*parts)
    tracemalloc.start()
    try:
        trace = read(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trace.gpu["grid"].nunique() > 2000
    # 2 of it is room that is never written to, which the system does not give.
    assert peak < 6 * len(content)
