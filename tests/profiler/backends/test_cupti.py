"""The CUPTI backend with a fake libcupti: one file of raw buffers and one of names a piece."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.profiler.backends.cupti import CuptiBackend
from spark_prof.profiler.backends.native import Native, NativeError
from spark_prof.traces.chunk_files import load_array
from spark_prof.traces.chunks import (
    ARGUMENT_DTYPE,
    activity_name,
    array_name,
    cubins_folder,
    names_name,
)
from spark_prof.traces.readers.cupti_blocks import name_pointers, read_records
from spark_prof.traces.readers.cupti_trace import kernel_names, symbols_of

from .conftest import records
from .fake import FakeCuda, FakeCupti

KERNEL, COPY, FILL, PEER_COPY, OVERHEAD = 10, 1, 2, 22, 17
KINDS = {KERNEL, COPY, FILL, PEER_COPY, OVERHEAD}
LAUNCHES = {211, 269, 311, 430}
SYMBOL = b"_Z8rms_normIfEvPT_"
READABLE = "void rms_norm<float>(float*)"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def synchronized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A torch with a GPU; how often it was waited for."""
    calls: list[int] = []
    cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return calls


@pytest.fixture(autouse=True)
def _no_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME",
                 "FLASHINFER_WORKSPACE_BASE"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def backend(native: Native, folder: Path) -> Iterator[CuptiBackend]:
    made = CuptiBackend(native, folder, "rank0")
    yield made
    made.discard()


KEPT: list[Any] = []


def named(symbol: bytes) -> int:
    """Where a kernel's name is in this process's memory, as records point to it."""
    KEPT.append(ctypes.create_string_buffer(symbol))
    return ctypes.addressof(KEPT[-1])


def kernels(*names: int) -> bytes:
    """Records of kernels with names at these addresses."""
    return records(KERNEL, names)


def recorded(cupti: FakeCupti) -> set[int]:
    return {number for number in range(1, 60) if cupti.kind(number)} - {4, 5}


def names_of(folder: Path, piece: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / names_name("rank0", piece)).read_text())
    return found


def count(folder: Path, piece: int) -> int:
    path = folder / activity_name("rank0", piece)
    return sum(records.count(KERNEL) for records in read_records(path, []))


def test_what_is_recorded_while_it_runs(backend: CuptiBackend, cupti: FakeCupti) -> None:
    assert recorded(cupti) == set()
    backend.start(0)
    assert recorded(cupti) == KINDS
    calls = {driver: cupti.calls(driver=driver) for driver in (False, True)}
    assert calls[False] >= LAUNCHES
    assert {307, 514} <= calls[True]
    assert all(len(found) < 100 for found in calls.values())
    backend.stop()
    assert recorded(cupti) == set()
    assert not cupti.kind(4)
    assert not cupti.kind(5)


def test_a_piece_holds_its_records_and_names(
    backend: CuptiBackend, cupti: FakeCupti, folder: Path, synchronized: list[int]
) -> None:
    cupti.behind(5_000_000_000)
    pointers = [named(SYMBOL), named(b"triton_red_fused_0"), named(b"not\xffutf8")]
    backend.start(0)
    cupti.deliver(kernels(*pointers[:2], pointers[0]))
    cupti.hold(kernels(pointers[2]))
    backend.stop()
    assert count(folder, 0) == 4
    assert name_pointers(folder / activity_name("rank0", 0))[0] == set(pointers)
    found = names_of(folder, 0)
    assert found["symbols"] == {
        str(pointers[0]): SYMBOL.decode(),
        str(pointers[1]): "triton_red_fused_0",
        str(pointers[2]): "not\ufffdutf8",
    }
    assert kernel_names(found)[str(pointers[0])] == READABLE
    assert symbols_of(found)[READABLE] == SYMBOL.decode()
    assert abs(found["clock_offset_ns"] - 5_000_000_000) < 50_000_000
    assert abs(found["clock_drift_ns"]) < 50_000_000
    assert synchronized == [1]
    # A piece that is cut short has these: a process that is killed writes no names any more.
    backend.start(1)
    begun = names_of(folder, 1)
    assert begun["symbols"] == found["symbols"]
    assert abs(begun["clock_offset_ns"] - 5_000_000_000) < 50_000_000


def test_the_arguments_of_a_piece(
    backend: CuptiBackend, cupti: FakeCupti, cuda: FakeCuda, native: Native, folder: Path
) -> None:
    native.subscribe()
    native.open_driver(cuda.path)
    cuda.kernel(0, 1, (1 << 40).to_bytes(8, "little"))
    memory = [{"address": 1 << 40, "total_size": 8}]
    sys.modules["torch"].cuda.memory_snapshot = lambda: memory
    for piece, read in enumerate((True, False)):
        backend.start(piece)
        backend.read_launches(on=read)
        cupti.launch(cuda, 1, 307, 70 + piece)
        backend.stop()
    found = load_array(folder / array_name("rank0", "arguments", 0), ARGUMENT_DTYPE)
    assert found[["correlation", "address"]].tolist() == [(70, 1 << 40)]
    # Nothing is written where nothing was read, nor does one piece go on in the next.
    assert not (folder / array_name("rank0", "arguments", 1)).exists()


def test_a_clock_that_drifts_is_told(backend: CuptiBackend, cupti: FakeCupti, folder: Path) -> None:
    backend.start(0)
    cupti.behind(2_000_000_000)
    backend.stop()
    found = names_of(folder, 0)
    assert abs(found["clock_drift_ns"] - 2_000_000_000) < 50_000_000
    assert abs(found["clock_offset_ns"] - 1_000_000_000) < 50_000_000


def test_what_an_earlier_piece_left_behind_is_not_the_next_one_s(
    backend: CuptiBackend, cupti: FakeCupti, folder: Path
) -> None:
    pointer = named(b"kernel")
    for piece in range(3):
        cupti.hold(kernels(pointer, pointer, pointer))
        backend.start(piece)
        cupti.deliver(kernels(*[pointer] * (piece + 1)))
        backend.stop()
    assert [count(folder, piece) for piece in range(3)] == [1, 2, 3]


def test_an_address_that_got_another_name(
    backend: CuptiBackend, cupti: FakeCupti, folder: Path
) -> None:
    """As when a module is unloaded and another one loaded in its place."""
    memory = ctypes.create_string_buffer(b"first", 32)
    pointer = ctypes.addressof(memory)
    for piece, name in enumerate((b"first", b"second")):
        memory.value = name
        backend.start(piece)
        cupti.deliver(kernels(pointer))
        backend.stop()
        assert names_of(folder, piece)["symbols"] == {str(pointer): name.decode()}


def test_a_discarded_piece_ends_the_recording(
    backend: CuptiBackend, cupti: FakeCupti, folder: Path
) -> None:
    backend.start(0)
    cupti.hold(kernels(named(b"kernel")))
    backend.discard()
    assert recorded(cupti) == set()
    backend.stop()
    assert (folder / activity_name("rank0", 0)).read_bytes() == b""
    assert names_of(folder, 0)["symbols"] == {}
    backend.start(1)
    backend.stop()
    assert names_of(folder, 1)["symbols"] == {}


def test_a_library_that_refuses_a_kind_is_told_and_nothing_goes_on(
    backend: CuptiBackend, cupti: FakeCupti, folder: Path
) -> None:
    cupti.refuse("Enable", 39)
    with pytest.raises(NativeError, match=r"refused to record activity 10 .another profiler"):
        backend.start(0)
    cupti.refuse("", 0)
    backend.discard()
    cupti.deliver(b"records of nobody")
    assert (folder / activity_name("rank0", 0)).read_bytes() == b""


def test_no_file_stays_open(backend: CuptiBackend, cupti: FakeCupti) -> None:
    gc.collect()  # what earlier tests left open
    before = len(os.listdir("/proc/self/fd"))
    for piece in range(3):
        backend.start(piece)
    backend.stop()
    cupti.refuse("Disable", 1)
    backend.start(3)
    with pytest.raises(NativeError):
        backend.stop()
    cupti.refuse("", 0)
    backend.discard()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_told_of_its_own_piece_only(
    backend: CuptiBackend, native: Native, cupti: FakeCupti, folder: Path
) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    backend.start(0)
    native.write_to(descriptor)
    cupti.deliver(kernels(named(b"kernel")))
    with pytest.raises(NativeError, match="1 buffers could not be written"):
        backend.stop()
    os.close(descriptor)
    backend.start(1)
    backend.stop()
    assert names_of(folder, 1)["symbols"] == {}


def test_code_of_new_functions_is_looked_for_in_the_caches(
    backend: CuptiBackend, cupti: FakeCupti, folder: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "home" / ".triton" / "cache" / "key"
    cache.mkdir(parents=True)
    for name in ("triton_one", "triton_two"):
        (cache / f"{name}.cubin").write_text(name)
    cubins_folder(folder).mkdir()

    def kept(piece: int, *names: bytes) -> list[str]:
        backend.start(piece)
        cupti.deliver(kernels(*map(named, names)))
        backend.stop()
        assert len(list(cubins_folder(folder).iterdir())) == piece  # no step waits for it
        backend.discard()
        return sorted(path.read_text() for path in cubins_folder(folder).iterdir())

    assert kept(0, b"triton_one", b"other") == ["triton_one"]
    assert kept(1, b"triton_one", b"triton_two") == ["triton_one", "triton_two"]
