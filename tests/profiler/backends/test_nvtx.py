"""NVTX for CUPTI: who listens, the texts that records point to, and what goes on without."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.profiler.backends.choose import choose_backend, early_native
from spark_prof.profiler.backends.cupti import INJECTION, CuptiBackend, read_texts, send_to_cupti
from spark_prof.profiler.backends.native import Native
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunks import names_name

from .conftest import On, records
from .fake import FakeCupti

MARKER, KERNEL = 12, 10

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INJECTION, "")  # so that it is as before afterwards
    monkeypatch.delenv(INJECTION)


@pytest.fixture
def backend(
    native: Native, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CuptiBackend]:
    cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    made = CuptiBackend(native, folder, "rank0", nvtx=True)
    yield made
    made.discard()


def markers(*names: int, domain: int = 0) -> bytes:
    """Records of ranges that begin."""
    return records(MARKER, names, domain=domain, flags=2, timestamp=1)


def texts_of(folder: Path, piece: int) -> Any:
    return json.loads((folder / names_name("rank0", piece)).read_text())["markers"]


def test_nvtx_that_a_process_uses_afterwards_reports_there(cupti: FakeCupti) -> None:
    """In a process of its own: NVTX never looks again."""
    pytest.importorskip("nvtx")
    program = (
        "import ctypes, sys\n"
        "from spark_prof.profiler.backends.cupti import send_to_cupti\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "assert send_to_cupti(sys.argv[1]) == ''\n"
        "import nvtx\n"
        "before = library.fake_injected()\n"
        "nvtx.get_domain('a domain')\n"
        "print(before, library.fake_injected())\n"
    )
    command = [sys.executable, "-c", program, cupti.path]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.stdout.split(), said.stderr) == (["0", "1"], "")


def test_another_listener_stays(tmp_path: Path) -> None:
    assert send_to_cupti("/lib/libcupti.so.13") == ""
    assert send_to_cupti("/lib/libcupti.so.13") == ""
    assert send_to_cupti("/other/libcupti.so.13") == "/lib/libcupti.so.13"
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    os.environ[INJECTION] = str(tmp_path / "link")
    assert send_to_cupti(str(tmp_path / "real")) == ""


def test_it_is_sent_before_anything_is_loaded(on_nvidia: On, works: Native, tmp_path: Path) -> None:
    early_native(Settings(str(tmp_path / "b")))
    assert INJECTION not in os.environ
    early_native(Settings(str(tmp_path / "b"), nvtx=True))
    assert os.environ[INJECTION] == works.libcupti


@pytest.mark.parametrize("listener", ["", "/opt/other/tool.so"])
def test_the_log_says_who_listens_instead(
    on_nvidia: On, works: Native, tmp_path: Path, listener: str
) -> None:
    if listener:
        os.environ[INJECTION] = listener
    settings = Settings(str(tmp_path / "b"), nvtx=True)
    process = Process(settings, "rank0", 0)
    assert choose_backend(settings, process)[0] == "cupti"
    log = process.folder / "rank0.log.jsonl"
    assert (log.exists() and listener in log.read_text()) == bool(listener)


def test_without_cupti_the_log_says_so(on_nvidia: On, fails: None, tmp_path: Path) -> None:
    settings = Settings(str(tmp_path / "b"), nvtx=True)
    process = Process(settings, "rank0", 0)
    assert early_native(settings) is None
    assert choose_backend(settings, process)[0] == "torch"
    assert "NVTX markers need the CUPTI backend" in (process.folder / "rank0.log.jsonl").read_text()
    assert INJECTION not in os.environ


def test_markers_are_recorded_if_wanted(
    native: Native, backend: CuptiBackend, cupti: FakeCupti, folder: Path
) -> None:
    backend.start(0)
    assert cupti.kind(MARKER)
    backend.stop()
    assert not cupti.kind(MARKER)
    plain = CuptiBackend(native, folder, "rank1")
    plain.start(0)
    assert not cupti.kind(MARKER)
    plain.stop()
    assert "markers" not in json.loads((folder / names_name("rank1", 0)).read_text())


def test_a_library_that_refuses_markers_records_kernels(
    backend: CuptiBackend, cupti: FakeCupti, folder: Path
) -> None:
    cupti.refuse_kind(MARKER)
    backend.start(0)
    assert (cupti.kind(KERNEL), cupti.kind(MARKER)) == (True, False)
    backend.stop()
    assert texts_of(folder, 0) == {}


def test_the_texts_of_a_piece(backend: CuptiBackend, cupti: FakeCupti, folder: Path) -> None:
    kept = [ctypes.create_string_buffer(text) for text in (b"step 1", b"not\xffutf8", b"NCCL")]
    first, second, domain = map(ctypes.addressof, kept)
    backend.start(0)
    cupti.deliver(markers(first, second, 0, domain=domain))
    backend.stop()
    texts = {str(first): "step 1", str(second): "not\ufffdutf8", str(domain): "NCCL"}
    assert texts_of(folder, 0) == texts
    backend.start(1)
    assert texts_of(folder, 1) == {}  # the next piece's may be others
    backend.stop()
    assert texts_of(folder, 1) == {}


def test_texts_at_the_end_of_memory_too_long_or_gone() -> None:
    size = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * size)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + size), ctypes.c_size_t(size), 0) == 0
    pages[size - 6 : size] = b"inside"
    long = ctypes.create_string_buffer(b"x" * 5000)
    last, much, gone = begin + size - 6, ctypes.addressof(long), 16
    found = read_texts([last, much, gone, 2**64 - 1])
    assert found[last] == "inside"
    assert found[much] == "x" * 1024
    assert found.keys() == {last, much}


def test_memory_that_nobody_may_look_into(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")

    kept = ctypes.create_string_buffer(b"text")
    monkeypatch.setattr("spark_prof.profiler.backends.cupti.open", refuse, raising=False)
    assert read_texts([ctypes.addressof(kept)]) == {}
