"""The CUPTI backend: raw activity records, taken by capture.c and decoded after the recording.

A piece is a file of raw buffers (docs/bundle.md) and a JSON file with what the records only point
to: the names of kernels and NVTX markers, which die with the process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from spark_prof.profiler.backends.native import Native, NativeError, on_device
from spark_prof.redact import redacted_value
from spark_prof.traces.chunks import (
    activity_name,
    append_log,
    array_name,
    cached_cubin_name,
    cubins_folder,
    names_name,
    write_array,
    write_json,
)
from spark_prof.traces.readers.cupti_blocks import name_pointers
from spark_prof.traces.readers.cupti_records import (
    CALLS,
    COPY,
    DRIVER_CALL,
    FILL,
    KERNELS,
    MARKER,
    OVERHEAD,
    PEER_COPY,
    RUNTIME_CALL,
)

INJECTION = "NVTX_INJECTION64_PATH"

_MOST_BYTES = 1024  # of a text; the rest is cut off

_MOST_TEXTS = 1 << 17  # of one piece: a program may make up a new one for each range


def send_to_cupti(libcupti: str) -> str:
    """Has NVTX report to that libcupti; what already listens in its place, empty if nothing."""
    listener = os.environ.setdefault(INJECTION, libcupti)
    same = listener == libcupti or os.path.realpath(listener) == os.path.realpath(libcupti)
    return "" if same else listener


def read_texts(pointers: Iterable[int]) -> dict[int, str]:
    """The text at each address of this process; an address that is not mapped has none.

    Who set a marker may have freed its text: read through the kernel, that is no crash.
    """
    texts: dict[int, str] = {}
    # Nobody may look into some processes.
    with suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as memory:
        for pointer in islice(pointers, _MOST_TEXTS):
            with suppress(OSError, OverflowError):
                data = os.pread(memory.fileno(), _MOST_BYTES, pointer)
                texts[pointer] = data.partition(b"\0")[0].decode(errors="replace")
    return texts


_MOST_FILES = 50_000


def code_caches(environment: Mapping[str, str]) -> dict[str, Path]:
    """The caches of Triton, Inductor, vLLM and FlashInfer, by their documented variables."""
    home = Path(environment.get("HOME") or "/")
    user = environment.get("XDG_CACHE_HOME")
    cache = Path(user) if user else home / ".cache"
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{environment.get('USER', 'root')}"
    flashinfer = Path(environment.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache/flashinfer"
    return {
        "triton": Path(environment.get("TRITON_CACHE_DIR") or home / ".triton/cache"),
        "inductor": Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or inductor),
        "vllm": Path(environment.get("VLLM_CACHE_ROOT") or cache / "vllm"),
        "flashinfer": flashinfer,
    }


def copy_cached(symbols: Collection[str], caches: Mapping[str, Path], folder: Path) -> int:
    """Copies the cached cubins that are named after these functions; how many were copied."""
    copies = 0
    for source, cache in caches.items():
        files = (Path(parent, name) for parent, _, names in os.walk(cache) for name in names)
        for path in islice(files, _MOST_FILES):
            if path.suffix == ".cubin" and path.stem in symbols:
                number = zlib.crc32(str(path).encode())
                target = folder / cached_cubin_name(source, number)
                try:
                    shutil.copyfile(path, target)
                except OSError:  # gone meanwhile or not ours to read; no half of it may stay
                    target.unlink(missing_ok=True)
                else:
                    copies += 1
    return copies


_KINDS = (KERNELS[1], COPY, FILL, PEER_COPY, OVERHEAD)

_BUFFER_BYTES = 4 << 20
"""CUPTI fills one buffer per thread while another is being written: a few of them are in use."""


class CuptiBackend:
    """Records kernels, copies, fills, launches, CUPTI's own overhead, and NVTX if wanted.

    NVTX must then report to this libcupti. Raises NativeError where libcupti refuses.
    """

    def __init__(self, native: Native, folder: Path, process: str, *, nvtx: bool = False) -> None:
        self._native, self._nvtx = native, nvtx
        self._folder, self._process, self._piece = folder, process, 0
        self._file = -1
        self._offset_ns = self._failed_writes = 0
        self._symbols: dict[int, str] = {}
        self._markers: dict[int, str] = {}
        native.prepare(_BUFFER_BYTES)

    def start(self, piece: int) -> None:
        """Begins to watch; buffers go to the piece's file as they fill."""
        self._end()  # one whose stop failed would keep its file open
        self._piece = piece
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._offset_ns = self._native.clock_offset_ns()
        self._native.flush(forced=True)  # what an earlier piece left behind
        self._native.write_to(self._file)
        self._failed_writes = self._native.statistics().failed_writes
        # Were the process killed now, these names would be better than none. Those of markers
        # may have changed: a program makes up new ones all the time.
        self._markers = {}
        self._write_names(drift=0)
        self._native.take_arguments()  # what came between two pieces belongs to none
        self._enable(True)

    def read_launches(self, *, on: bool) -> None:
        """Reads the arguments of kernels that are launched outside of graphs from now on, or not.

        Each start and stop ends it. It is for few steps: measured on an H200, 9.4 us a launch
        without, 18.5 us with it.
        """
        with suppress(NativeError):  # an older library: such kernels then have no arguments
            self._native.launches(on=on)

    def pause(self) -> None:
        """Watches no more until `resume`; the piece goes on."""
        if self._file >= 0:
            _synchronize()
            self._enable(False)

    def resume(self) -> None:
        """Watches again, into the same piece."""
        if self._file >= 0:
            self._enable(True)

    def stop(self) -> None:
        """Stops to watch; writes the last buffers and the names that the piece uses."""
        if self._file < 0:
            return
        _synchronize()
        self._enable(False)
        self._native.flush(forced=True)
        self._close()
        drift = self._native.clock_offset_ns() - self._offset_ns
        # All of them anew: an address may have got another name when its module was unloaded.
        kernels, markers = name_pointers(self._path)
        self._symbols |= _symbols(kernels)
        self._markers = read_texts(markers) if self._nvtx else {}
        self._write_names(drift)
        self._write_arguments()
        failed = self._native.statistics().failed_writes - self._failed_writes
        if failed:
            raise NativeError(f"{failed} buffers could not be written")

    def discard(self) -> None:
        """Stops to watch if it still does, and leaves CUPTI to other profilers."""
        try:
            self._end()
        finally:
            self._native.unsubscribe()
        self._keep_cached_code()

    def _end(self) -> None:
        if self._file >= 0:
            self._enable(False)
            self._native.write_to(-1)
            self._native.flush(forced=True)
            self._close()

    def _write_names(self, drift: int) -> None:
        value: dict[str, object] = {
            "clock_offset_ns": self._offset_ns + drift // 2,
            "clock_drift_ns": drift,
            # As the compiler made them: who reads them takes the time to find what people read.
            "symbols": {str(pointer): symbol for pointer, symbol in self._symbols.items()},
        }
        if self._nvtx:
            texts = {str(pointer): text for pointer, text in self._markers.items()}
            value["markers"] = redacted_value(texts)
        write_json(self._folder, names_name(self._process, self._piece), value, symbols=True)

    def _write_arguments(self) -> None:
        words, lost = self._native.take_arguments()
        if len(rows := on_device(words)):
            name = array_name(self._process, "arguments", self._piece)
            write_array(self._folder, name, rows)
        if lost:  # the piece is whole without them
            text = f"{lost} arguments of launched kernels had no room"
            append_log(self._folder, self._process, time.time_ns(), text)

    def _keep_cached_code(self) -> None:
        """Looks into the JIT caches for the functions that ran, once no step waits for it."""
        folder, symbols = cubins_folder(self._folder), set(self._symbols.values())
        if symbols and folder.exists():
            copy_cached(symbols, code_caches(os.environ), folder)

    @property
    def _path(self) -> Path:
        return self._folder / activity_name(self._process, self._piece)

    def _enable(self, on: bool) -> None:
        for kind in _KINDS:
            self._native.activity(kind, on)
        self._native.calls(sorted(CALLS[RUNTIME_CALL]), driver=False, on=on)
        self._native.calls(sorted(CALLS[DRIVER_CALL]), driver=True, on=on)
        if not on:
            self.read_launches(on=False)
        if self._nvtx:
            with suppress(NativeError):  # kernels are worth more; the bundle says that none came
                self._native.activity(MARKER, on)

    def _close(self) -> None:
        self._native.write_to(-1)
        descriptor, self._file = self._file, -1
        os.close(descriptor)  # made durable later, off the path of the steps


def _synchronize() -> None:
    """Waits for the GPU: only finished kernels have a record."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _symbols(pointers: Iterable[int]) -> dict[int, str]:
    """The function's symbol for each pointer of this process."""
    return {p: ctypes.string_at(p).decode(errors="replace") for p in pointers}
