"""capture.c with a fake libcupti: what it is handed is in the files, whole and in order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from spark_prof.profiler.backends import native as native_module
from spark_prof.profiler.backends.native import Native, NativeError, load_native
from spark_prof.traces.chunks import NODE_DTYPE
from spark_prof.traces.readers.cupti_blocks import HEADER, MAGIC, read_records
from tests.support import files_of_at_most, program

from .conftest import MakeFake
from .fake import FakeCupti

BUFFER = 1 << 16
GRAPHNODE_CREATED, GRAPHNODE_CLONED, MODULE_LOADED = 13, 20, 6

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def prepared(native: Native) -> Native:
    native.subscribe()
    native.prepare(BUFFER)
    return native


@contextmanager
def written(native: Native, path: Path | str) -> Iterator[None]:
    """Sends the buffers to that file meanwhile."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    native.write_to(descriptor)
    try:
        yield
    finally:
        native.write_to(-1)
        os.close(descriptor)


def blocks(path: Path) -> list[tuple[int, int, bytes]]:
    """Version, dropped records so far and content of each block."""
    data, found = path.read_bytes(), []
    while data:
        magic, version, reserved, size, dropped = HEADER.unpack_from(data)
        assert (magic, reserved) == (MAGIC, 0)
        found.append((version, dropped, data[HEADER.size : HEADER.size + size]))
        assert len(found[-1][2]) == size
        data = data[HEADER.size + size :]
    return found


def random_bytes(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8).tobytes()


def test_the_file_holds_what_was_delivered(
    prepared: Native, cupti: FakeCupti, tmp_path: Path
) -> None:
    sizes = (1, 7, 224, BUFFER // 2, BUFFER)
    delivered = [random_bytes(size, seed) for seed, size in enumerate(sizes)]
    with written(prepared, tmp_path / "raw"):
        assert all(map(cupti.deliver, delivered))
    assert blocks(tmp_path / "raw") == [(130000, 0, records) for records in delivered]
    found = prepared.statistics()
    assert (found.blocks, found.bytes, found.failed_writes) == (5, sum(sizes), 0)


def test_dropped_records_are_counted_in_every_later_block(
    prepared: Native, cupti: FakeCupti, tmp_path: Path
) -> None:
    with written(prepared, tmp_path / "raw"):
        for dropped in (0, 5, 0, 2):
            cupti.drop(dropped)
            cupti.deliver(b"records")
    assert [dropped for _, dropped, _ in blocks(tmp_path / "raw")] == [0, 5, 5, 7]
    assert prepared.statistics().dropped == 7
    with written(prepared, tmp_path / "drops alone"):
        cupti.drop(3)
        cupti.deliver(b"")
    lost: list[str] = []
    assert sum(records.count(10) for records in read_records(tmp_path / "drops alone", lost)) == 0
    assert lost == ["CUPTI dropped 10 records since the process began to record"]


def test_ten_thousand_buffers_take_the_memory_of_one(
    prepared: Native, cupti: FakeCupti, tmp_path: Path
) -> None:
    with written(prepared, tmp_path / "raw"):
        cupti.threads(1, 10_000, b"\7" * 100)
    found = prepared.statistics()
    assert (found.blocks, found.buffers) == (10_000, 1)
    assert (tmp_path / "raw").stat().st_size == 10_000 * (HEADER.size + 100)


def test_a_torn_write_is_taken_back(prepared: Native, cupti: FakeCupti, tmp_path: Path) -> None:
    with files_of_at_most(3000), written(prepared, tmp_path / "raw"):
        cupti.deliver(b"\1" * 1000)
        cupti.deliver(b"\2" * 2000)
        cupti.deliver(b"\3" * 500)
    assert [content for _, _, content in blocks(tmp_path / "raw")] == [b"\1" * 1000, b"\3" * 500]
    assert prepared.statistics().failed_writes == 1


def test_threads_that_hold_the_interpreter_lock_do_not_wait_for_it(
    prepared: Native, cupti: FakeCupti, tmp_path: Path
) -> None:
    """As a kernel launch does that Python made without letting go of the lock."""
    done = threading.Event()

    def deliver() -> None:
        cupti.threads(2, 50, b"records", locked=True)
        done.set()

    with written(prepared, tmp_path / "raw"):
        threading.Thread(target=deliver, daemon=True).start()
        assert done.wait(30)
    assert prepared.statistics().blocks == 100


def test_blocks_of_several_threads_do_not_mix(
    prepared: Native, cupti: FakeCupti, tmp_path: Path
) -> None:
    records = random_bytes(20_000)
    with written(prepared, tmp_path / "raw"):
        cupti.threads(8, 25, records)
    assert blocks(tmp_path / "raw") == [(130000, 0, records)] * 200
    assert prepared.statistics().buffers <= 8
    assert cupti.unzeroed == 0


def test_nodes_and_their_clones(prepared: Native, cupti: FakeCupti) -> None:
    before = time.time_ns()
    cupti.node(1, 4_294_967_296)
    cupti.node(2, 8_589_934_592)
    cupti.node(2, 8_589_934_592, 4_294_967_296)
    found = prepared.nodes()
    assert found.dtype == NODE_DTYPE
    assert found[["node", "original", "graph", "thread"]].tolist() == [
        (4_294_967_296, 0, 1, threading.get_native_id()),
        (8_589_934_592, 0, 2, threading.get_native_id()),
        (8_589_934_592, 4_294_967_296, 2, threading.get_native_id()),
    ]
    assert (np.diff(found["created_ns"], prepend=before, append=time.time_ns()) >= 0).all()


def test_nodes_of_several_threads_are_all_kept_in_each_thread_s_order(
    prepared: Native, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are asked for at once."""
    monkeypatch.setattr(native_module, "_NODES_AT_ONCE", 1 << 12)
    cupti.threads(4, 2_000, b"")
    found = prepared.nodes()
    assert len(found) == prepared.statistics().nodes == 8_000
    assert len(np.unique(found["thread"])) == 4
    for number in range(4):
        mine = found[found["graph"] == number + 1]
        assert (mine["node"] == (number << 32) + np.arange(1, 2_001)).all()
        assert len(np.unique(mine["thread"])) == 1
        assert (np.diff(mine["created_ns"]) >= 0).all()


def test_what_is_none_of_ours_is_ignored(prepared: Native, cupti: FakeCupti) -> None:
    cupti.others()
    cupti.deliver_none()
    assert prepared.statistics().nodes == 0
    assert cupti.deliver(b"records")


def test_machine_code_is_written_whole(prepared: Native, cupti: FakeCupti, tmp_path: Path) -> None:
    codes = [b"\x7fELF" + random_bytes(size, size) for size in (1, 1000, 3_000_000)]
    folder = tmp_path / "cubins"
    folder.mkdir()
    cupti.module(b"before anybody wanted it")
    prepared.keep_cubins(folder)
    assert all(map(cupti.module, codes))
    cupti.module(None, 5)
    cupti.module(b"", 0)
    prepared.keep_cubins(None)
    cupti.module(b"after that")
    names = [f"{os.getpid()}-{number}.cubin" for number in range(3)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert [(folder / name).read_bytes() for name in names] == codes
    found = prepared.statistics()
    assert (found.cubins, found.failed_cubins) == (3, 0)
    assert found.cubin_bytes == sum(map(len, codes))


def test_machine_code_that_does_not_fit_leaves_no_half_of_it(
    prepared: Native, cupti: FakeCupti, tmp_path: Path
) -> None:
    prepared.keep_cubins(tmp_path / "gone")
    cupti.module(b"code")
    folder = tmp_path / "cubins"
    folder.mkdir()
    prepared.keep_cubins(folder)
    with files_of_at_most(1000):
        cupti.module(b"code" * 1000)
    assert list(folder.iterdir()) == []
    assert prepared.statistics().failed_cubins == 2
    cupti.module(b"code")
    assert [path.read_bytes() for path in folder.iterdir()] == [b"code"]


@pytest.mark.parametrize("driver", [False, True])
def test_only_wanted_calls_are_recorded(native: Native, cupti: FakeCupti, driver: bool) -> None:
    native.calls((211, 311, 900), driver=driver, on=True)
    assert cupti.calls(driver=driver) == {211, 311, 900}
    assert cupti.calls(driver=not driver) == set()
    assert (cupti.kind(4), cupti.kind(5)) == (driver, not driver)
    native.calls((211, 311, 900), driver=driver, on=False)
    assert cupti.calls(driver=driver) == set()
    native.calls((), driver=driver, on=True)
    assert cupti.calls(driver=driver) == set()


def test_a_library_that_cannot_choose_records_all_calls(make_fake: MakeFake, capture: Path) -> None:
    cupti = make_fake("WITHOUT_CHOICE")
    native = Native(capture, cupti.path)
    native.calls((211,), driver=False, on=True)
    assert len(cupti.calls(driver=False)) == 900


@pytest.mark.parametrize(
    ("function", "code", "reason"),
    [
        ("Subscribe", 39, "another profiler holds it"), ("EnableCallback", 35, "no permission"),
        ("RegisterCallbacks", 999, "CUPTI error 999"), ("Enable", 39, "another profiler holds it"),
    ],
)  # fmt: skip
def test_a_refusal_is_told(
    native: Native, cupti: FakeCupti, function: str, code: int, reason: str
) -> None:
    cupti.refuse(function, code)
    with pytest.raises(NativeError, match=reason):
        _use(native)
    with pytest.raises(NativeError, match=reason):
        _use(native)
    cupti.refuse("", 0)
    _use(native)
    assert cupti.node(1, 2)
    assert len(native.nodes()) == 1


def _use(native: Native) -> None:
    native.subscribe()
    native.prepare(BUFFER)
    native.activity(10, True)
    native.calls((211,), driver=False, on=True)


def test_a_library_that_lacks_a_function(make_fake: MakeFake, capture: Path) -> None:
    with pytest.raises(NativeError, match="it lacks a function"):
        Native(capture, make_fake("WITHOUT_GRAPHS").path)


def test_files_that_are_no_libraries(capture: Path, cupti: FakeCupti, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    with pytest.raises(NativeError, match=r"text cannot be used .it cannot be loaded"):
        Native(capture, str(tmp_path / "text"))
    with pytest.raises(NativeError, match="cannot load"):
        Native(tmp_path / "text", cupti.path)


def test_the_loaded_libcupti_is_found_and_subscribed_to(cupti: FakeCupti, tmp_path: Path) -> None:
    native = _load(tmp_path)
    assert native.version == 130000
    assert (tmp_path.stat().st_mode & 0o777, len(list(tmp_path.glob("capture-*.so")))) == (0o700, 1)
    # Another test's fake may be the one that was found first: it is loaded too.
    assert len(native.nodes()) == 0


def test_without_a_compiler(
    cupti: FakeCupti, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NativeError, match="no C compiler found"):
        _load(tmp_path)


def test_a_compiler_that_fails(
    cupti: FakeCupti, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = program(tmp_path / "compiler", "echo no such thing >&2\nexit 1")
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(NativeError, match=r"cannot compile capture\.c: no such thing"):
        _load(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"compiler", "cupti0"}


def _load(folder: Path) -> Native:
    folder.chmod(0o700)
    native_module.load_native.cache_clear()
    return load_native(folder)
