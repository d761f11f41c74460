"""arguments.c with a fake driver: every word that may be an address is told, and nothing else."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_prof.profiler.backends.native import Native, NativeError, on_device
from spark_prof.traces.chunks import ARGUMENT_DTYPE

from .fake import FakeCuda, FakeCupti

WEIGHT, CACHE, OTHER = 0x7F12_3400_0000, 0x7F55_0000_0200, 0x3_0200_0000
KERNEL, COPY, GRAPH = 0, 1, 4
LAUNCH, LAUNCH_THREAD, COOPERATIVE, LAUNCH_EX = 307, 442, 477, 652
RUNTIME_LAUNCH = 211

pytestmark = pytest.mark.timeout(60)


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


@pytest.fixture
def opened(native: Native, cuda: FakeCuda) -> Native:
    native.subscribe()
    native.open_driver(cuda.path)
    return native


def taken(native: Native) -> list[tuple[int, ...]]:
    """node, correlation, argument, offset, size and address of each row."""
    rows, lost = native.take_arguments()
    assert lost == 0
    names = ["node", "correlation", "argument", "offset", "size", "address"]
    return [tuple(map(int, row)) for row in rows[names].tolist()]


@pytest.mark.parametrize("library", [False, True])
def test_pointers_of_a_captured_kernel(opened: Native, cuda: FakeCuda, library: bool) -> None:
    given = (words(WEIGHT), struct.pack("<i", 7), words(CACHE), struct.pack("<f", 1.0))
    cuda.kernel(9, 1, *given, library=library)
    opened.read_capture(9)
    assert taken(opened) == [(1, -1, 0, 0, 8, WEIGHT), (1, -1, 2, 0, 8, CACHE)]


def test_words_of_a_structure(opened: Native, cuda: FakeCuda) -> None:
    """Only at multiples of eight, as compilers align pointers; a rest shorter than one is left."""
    inside = words(3, WEIGHT, 1 << 62 | CACHE) + b"\xff" * 4
    cuda.kernel(9, 1, struct.pack("<i", 7), inside)
    opened.read_capture(9)
    # The second word has other things in its highest bits, as tensor maps have.
    size = len(inside)
    assert taken(opened) == [(1, -1, 1, 8, size, WEIGHT), (1, -1, 1, 16, size, CACHE)]


def test_a_packed_buffer(opened: Native, cuda: FakeCuda) -> None:
    cuda.kernel(9, 1, words(OTHER), words(5, WEIGHT), packed=True)
    opened.read_capture(9)
    assert taken(opened) == [(1, -1, -1, 0, 24, OTHER), (1, -1, -1, 16, 24, WEIGHT)]


def test_numbers_are_no_addresses(opened: Native, cuda: FakeCuda) -> None:
    small, large = (1 << 32) - 1, 1 << 49
    values = (0, 1, small, large, large | WEIGHT, struct.unpack("<Q", struct.pack("<d", 1.0))[0])
    cuda.kernel(9, 1, *map(words, values))
    opened.read_capture(9)
    assert taken(opened) == []


def test_other_nodes_and_graphs(opened: Native, cuda: FakeCuda) -> None:
    """A graph within the graph is read too; another stream's graph is not."""
    cuda.kernel(9, 1, words(WEIGHT))
    cuda.other(9, 2, COPY)
    cuda.other(9, 3, GRAPH, inner=10)
    cuda.kernel(10, 4, words(CACHE))
    cuda.kernel(11, 5, words(OTHER))
    opened.read_capture(9)
    assert [(node, address) for node, *_, address in taken(opened)] == [(1, WEIGHT), (4, CACHE)]


def test_a_graph_inside_itself_ends(opened: Native, cuda: FakeCuda) -> None:
    cuda.other(9, 2, GRAPH, inner=9)
    cuda.kernel(9, 1, words(WEIGHT))
    opened.read_capture(9)
    assert {row[0] for row in taken(opened)} == {1}


def test_a_stream_that_does_not_capture(opened: Native, cuda: FakeCuda) -> None:
    cuda.status(0)
    with pytest.raises(NativeError, match="the stream does not capture"):
        opened.read_capture(9)
    cuda.refuse(700)
    with pytest.raises(NativeError, match="CUPTI error 700"):
        opened.read_capture(9)


def test_a_driver_that_lacks_a_function(
    native: Native, libraries: dict[str, Path], tmp_path: Path
) -> None:
    native.subscribe()
    path = shutil.copy(libraries["old"], tmp_path / "old.so")
    with pytest.raises(NativeError, match="it lacks a function"):
        native.open_driver(str(path))
    with pytest.raises(NativeError, match="cannot be loaded"):
        native.open_driver(str(tmp_path / "none.so"))
    with pytest.raises(NativeError, match="cannot be loaded"):
        native.read_capture(9)


@pytest.mark.parametrize("call", [LAUNCH, LAUNCH_THREAD, COOPERATIVE, LAUNCH_EX])
def test_a_launch_outside_of_graphs(
    opened: Native, cuda: FakeCuda, cupti: FakeCupti, call: int
) -> None:
    cuda.kernel(0, 1, words(WEIGHT))
    cupti.launch(cuda, 1, call, 70)
    assert taken(opened) == []  # not asked for
    opened.launches(on=True)
    cupti.launch(cuda, 1, call, 71)
    # Kernels have the number of the outermost call.
    cupti.launch(cuda, 1, call, 72, outer=RUNTIME_LAUNCH)
    cupti.launch(cuda, 1, call, 75)
    opened.launches(on=False)
    cupti.launch(cuda, 1, call, 76)
    assert taken(opened) == [(0, number, 0, 0, 8, WEIGHT) for number in (71, 72, 75)]


def test_a_packed_launch(opened: Native, cuda: FakeCuda, cupti: FakeCupti) -> None:
    cuda.kernel(0, 1, words(WEIGHT, CACHE), packed=True)
    opened.launches(on=True)
    cupti.launch(cuda, 1, LAUNCH_EX, 5)
    assert taken(opened) == [(0, 5, -1, 0, 16, WEIGHT), (0, 5, -1, 8, 16, CACHE)]


def test_memory_stays_bounded(opened: Native, cuda: FakeCuda) -> None:
    many = words(*(WEIGHT + 256 * i for i in range(4000)))
    for number in range(1, 65):
        cuda.kernel(9, number, many)
    for _ in range(10):
        opened.read_capture(9)
    rows, lost = opened.take_arguments()
    assert len(rows) == 1 << 21
    assert len(rows) + lost == 10 * 64 * 4000


def test_what_lies_in_no_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    segments: list[dict[str, Any]] = [
        {"address": WEIGHT, "total_size": 1024},
        {"address": OTHER, "total_size": 8},
    ]
    cuda = SimpleNamespace(memory_snapshot=lambda: segments)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    places = [OTHER - 8, OTHER, OTHER + 8, WEIGHT - 1, WEIGHT, WEIGHT + 1023, WEIGHT + 1024]
    rows = np.zeros(len(places), ARGUMENT_DTYPE)
    rows["address"] = places
    assert on_device(rows)["address"].tolist() == [OTHER, WEIGHT, WEIGHT + 1023]
    segments.clear()
    assert len(on_device(rows)) == 0
