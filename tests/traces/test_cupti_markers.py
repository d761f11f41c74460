"""NVTX markers in raw CUPTI buffers: which records make a range, and what is told to be missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spark_prof
from spark_prof.traces.chunks import activity_name, names_name
from spark_prof.traces.foreign import Trace
from spark_prof.traces.readers.cupti_trace import read_cupti
from spark_prof.traces.tables import TABLES
from tests.rows import each_row
from tests.support import ORIGIN, Piece, Recorded, step

from .cupti_buffers import CUDA_13_0, VERSIONS, block, dtype_of, records

MARKER, KERNEL = 12, 10
INSTANT, BEGIN, END, ACQUIRE = 1, 2, 4, 8
PREFILL, DECODE, MARK, NCCL, GEMM = 0x7F00_1000, 0x7F00_2000, 0x7F00_3000, 0x7F00_4000, 0x7F00_5000
TEXTS = {PREFILL: "prefill", DECODE: "decode", MARK: "here", NCCL: "NCCL"}
THREAD = 4711
OFFSET = 1_800_000_000_000_000_000

Read = Callable[..., Trace]


def marker(
    flags: int, time: int, number: int, name: int = 0, domain: int = 0, *, thread: int = THREAD,
    object_kind: int = 2, version: int = CUDA_13_0,
) -> Any:  # fmt: skip
    """One record as the header lays it out; the thread is the second word of objectId."""
    row = np.zeros(1, dtype_of(MARKER, version))
    for field, value in {
        "kind": MARKER, "flags": flags, "timestamp": time, "id": number, "name": name,
        "domain": domain, "objectKind": object_kind,
    }.items():  # fmt: skip
        row[field] = value
    row.view("<u4")[7] = thread
    return row


def both(begin: int, end: int, number: int, name: int, **more: Any) -> list[Any]:
    return [marker(BEGIN, begin, number, name, **more), marker(END, end, number)]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(*blocks: bytes, texts: dict[int, str] | None = TEXTS) -> Trace:
        path, beside = tmp_path / "a.bin", tmp_path / "a.json"
        path.write_bytes(b"".join(blocks))
        names: dict[str, Any] = {"clock_offset_ns": OFFSET, "names": {str(GEMM): "gemm"}}
        if texts is not None:
            names["markers"] = {str(pointer): text for pointer, text in texts.items()}
        beside.write_text(json.dumps(names))
        return read_cupti(path, beside)

    return run


def found(trace: Trace) -> list[tuple[Any, ...]]:
    frame = trace.markers
    times = ((frame[name] - OFFSET).tolist() for name in ("start_ns", "end_ns"))
    return list(zip(frame["name"], *times, strict=True))


@each_row("version", VERSIONS)
def test_a_range_and_a_mark_of_every_version(read: Read, version: int) -> None:
    trace = read(
        block(
            marker(BEGIN, 10, 7, PREFILL, NCCL, version=version),
            marker(INSTANT, 20, 8, MARK, version=version),
            marker(END, 30, 7, version=version),
            version=version,
        )
    )
    assert trace.markers.astype({"name": object, "domain": object}).to_dict("records") == [
        {"name": "prefill", "domain": "NCCL", "start_ns": OFFSET + 10, "end_ns": OFFSET + 30,
         "thread": THREAD},
        {"name": "here", "domain": "", "start_ns": OFFSET + 20, "end_ns": OFFSET + 20,
         "thread": THREAD},
    ]  # fmt: skip
    assert trace.lost == ()
    assert {*trace.markers, "step", "nested"} == set(TABLES["markers"].schema.names)


def test_ranges_inside_each_other_and_across_threads(read: Read) -> None:
    parts = [
        marker(BEGIN, 10, 1, PREFILL),
        marker(BEGIN, 20, 2, DECODE, thread=5),
        marker(BEGIN, 25, 3, DECODE),
        marker(END, 40, 2, thread=THREAD),
        marker(END, 30, 3),
        marker(END, 50, 1),
    ]
    trace = read(block(*parts))
    assert found(trace) == [("prefill", 10, 50), ("decode", 20, 40), ("decode", 25, 30)]
    assert trace.markers["thread"].tolist() == [THREAD, 5, THREAD]


def test_a_range_of_a_stream_has_no_thread(read: Read) -> None:
    """CUpti_ActivityObjectKind 4; -1 does not fit into the field that a thread's number is in."""
    trace = read(block(*both(10, 20, 1, PREFILL, object_kind=4)))
    assert trace.markers["thread"].tolist() == [-1]
    assert trace.markers["thread"].dtype == np.int64


def test_the_end_may_lie_in_a_buffer_before_the_begin(read: Read) -> None:
    """Each thread fills a buffer of its own."""
    trace = read(block(marker(END, 90, 1)), block(records(KERNEL, name=GEMM)),
                 block(marker(BEGIN, 10, 1, PREFILL)))  # fmt: skip
    assert found(trace) == [("prefill", 10, 90)]
    assert trace.lost == ()


def test_an_id_that_is_used_again(read: Read) -> None:
    parts = [*both(10, 20, 1, PREFILL), marker(END, 25, 1), *both(30, 30, 1, DECODE)]
    trace = read(block(*parts, marker(BEGIN, 40, 1, PREFILL), *both(50, 60, 1, DECODE)))
    assert found(trace) == [("prefill", 10, 20), ("decode", 30, 30), ("decode", 50, 60)]
    assert trace.lost == (
        "1 NVTX ranges ended after this piece and 1 began before it; they were left out",
    )


def test_synchronization_objects_are_passed_over(read: Read) -> None:
    trace = read(block(marker(ACQUIRE, 10, 1, MARK), *both(20, 30, 2, DECODE)))
    assert found(trace) == [("decode", 20, 30)]
    assert trace.lost == ()


@pytest.mark.parametrize("time", [0, 2**62, 2**64 - 1])
def test_a_marker_without_a_time_is_left_out(read: Read, time: int) -> None:
    trace = read(block(marker(INSTANT, time, 1, MARK), marker(INSTANT, 5, 2, MARK)))
    assert found(trace) == [("here", 5, 5)]
    assert trace.lost == ("1 records have no time and were left out",)


def recorded(bundle: Path, *parts: Any, nvtx: bool = True, backend: str = "cupti") -> Any:
    """A bundle of two steps with these records; their times count from the first one's start."""
    steps = [step(3, 0, 1000), step(4, 2000, 3000)]
    run = Recorded({0: [Piece(steps)]}, facts={"backend": backend}, settings={"nvtx": nvtx})
    pieces = run.write(bundle)
    names = {"clock_offset_ns": ORIGIN - 1, "names": {str(GEMM): "gemm"}}
    texts = {"markers": {str(pointer): text for pointer, text in TEXTS.items()}}
    (pieces / names_name("rank0", 0)).write_text(json.dumps(names | texts))
    data = block(records(KERNEL, name=GEMM, start=101, end=201), *parts)
    (pieces / activity_name("rank0", 0)).write_bytes(data)
    return spark_prof.load(bundle)


def test_the_bundle_and_its_report(tmp_path: Path) -> None:
    bundle = recorded(
        tmp_path / "b", *both(101, 901, 1, DECODE), *both(1501, 1601, 2, DECODE),
        *both(2101, 2601, 3, PREFILL, domain=NCCL), marker(INSTANT, 2301, 4, MARK),
    )  # fmt: skip
    markers = bundle.frame("markers", 0)
    assert markers["step"].tolist() == [3, -1, 4, 4]
    assert markers["start_ns"].tolist() == [ORIGIN + t for t in (100, 1500, 2100, 2300)]
    rows = [(r.name, r.domain, r.calls, r.us) for r in spark_prof.report(bundle).markers]
    assert rows == [("decode", "", 2, 0.9), ("prefill", "NCCL", 1, 0.5), ("here", "", 1, 0.0)]
