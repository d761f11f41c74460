"""Builds and loads capture.c and arguments.c: what CUPTI calls, which must not wait for Python.

It is compiled on first use, for the process that records: vLLM needs a C compiler on a GPU machine
anyway, because Triton compiles its launchers with one. The result is kept in this user's private
folder under the name of its sources' hash. Of the arguments of kernels only addresses in this
process's GPU memory are kept.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spark_prof.traces.chunks import ARGUMENT_DTYPE, NODE_DTYPE

Rows = npt.NDArray[np.void]


def on_device(words: Rows) -> Rows:
    """The rows of pieces.ARGUMENT_DTYPE whose address lies in memory of PyTorch's allocator.

    Most of them are sizes, strides and other numbers.
    """
    if not len(words):
        return words
    import torch

    segments = torch.cuda.memory_snapshot()
    spans = sorted((int(s["address"]), int(s["total_size"])) for s in segments)
    if not spans:
        return words[:0]
    begin, size = np.array(spans, np.int64).T
    place = np.searchsorted(begin, words["address"], side="right") - 1
    inside = (place >= 0) & (words["address"] < (begin + size)[place])
    rows: Rows = words[inside]
    return rows


SOURCES = tuple(Path(__file__).with_name(name) for name in ("capture.c", "arguments.c"))
"""What is compiled; both include capture.h."""

_DRIVER = "libcuda.so.1"

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O2", "-std=gnu11", "-shared", "-fPIC")
_LIBRARIES = ("-ldl", "-lpthread")
_COMPILE_SECONDS = 60.0
_NODES_AT_ONCE = 1 << 16
_REASONS = {
    -1: "it cannot be loaded",
    -2: "it lacks a function",
    35: "no permission to profile",
    -3: "out of memory",
    -4: "the stream does not capture",
    -5: "it is not subscribed to",
    39: "another profiler holds it",
}


class NativeError(RuntimeError):
    """The CUPTI backend cannot work here; the text says why in one line."""


@dataclass(frozen=True)
class Statistics:
    """What the callbacks have seen so far; times in ns, counts since the process began."""

    blocks: int
    bytes: int
    dropped: int
    failed_writes: int
    buffers: int
    nodes: int
    cubins: int
    cubin_bytes: int
    failed_cubins: int
    callback_ns: int


class Native:
    """capture.c and arguments.c, compiled into a library, on the libcupti of this process.

    It raises NativeError where one of the two cannot be used.
    """

    def __init__(self, library: Path, libcupti: str) -> None:
        try:
            self._call = ctypes.CDLL(str(library))  # lets go of the interpreter lock
        except OSError as error:
            raise NativeError(f"cannot load {library}: {error}") from error
        version = ctypes.c_uint32()
        code = self._call.spark_prof_open(libcupti.encode(), ctypes.byref(version))
        if code:
            raise NativeError(f"{libcupti} cannot be used ({_reason(code)})")
        self._call.spark_prof_count_arguments.restype = ctypes.c_size_t
        self._call.spark_prof_take_arguments.restype = ctypes.c_size_t
        self.version, self.libcupti = version.value, libcupti

    def subscribe(self) -> None:
        """Begins to keep graph nodes, and machine code where a folder is set for it."""
        self._check("be subscribed to", self._call.spark_prof_subscribe())

    def unsubscribe(self) -> None:
        """Leaves CUPTI to other profilers of this process; what was kept stays."""
        self._check("be left", self._call.spark_prof_unsubscribe())

    def keep_cubins(self, folder: Path | None) -> None:
        """Keeps the machine code that is loaded from now on in that folder, or none of it."""
        self._call.spark_prof_keep_cubins(os.fsencode(folder or ""))

    def open_driver(self, path: str = _DRIVER) -> None:
        """Finds the driver's functions that tell the arguments of kernels."""
        self._check("read arguments", self._call.spark_prof_open_driver(path.encode()))

    def read_capture(self, stream: int) -> None:
        """Reads the arguments of every kernel that a stream has captured into its graph so far."""
        self._check("read a graph", self._call.spark_prof_read_capture(ctypes.c_void_p(stream)))

    def launches(self, *, on: bool) -> None:
        """Turns the reading of arguments of kernels that are launched by themselves on or off."""
        self._check("watch launches", self._call.spark_prof_launches(int(on)))

    def take_arguments(self) -> tuple[npt.NDArray[np.void], int]:
        """Hands over what was read since the last time, and for how much there was no room.

        Rows of pieces.ARGUMENT_DTYPE: every word that may be an address on the device.
        """
        count = self._call.spark_prof_count_arguments()
        rows, lost = np.empty(count, ARGUMENT_DTYPE), ctypes.c_uint64()
        count_read = self._call.spark_prof_take_arguments(
            rows.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(count), ctypes.byref(lost)
        )
        return rows[:count_read], lost.value

    def prepare(self, buffer_bytes: int) -> None:
        """Registers the buffer callbacks; before the first `activity`."""
        code = self._call.spark_prof_prepare(ctypes.c_size_t(buffer_bytes))
        self._check("register buffers", code)

    def write_to(self, descriptor: int) -> None:
        """Sends completed buffers to that file from now on; -1 throws them away."""
        self._call.spark_prof_write_to(descriptor)

    def activity(self, kind: int, on: bool) -> None:
        """Turns the recording of a kind of activity on or off."""
        self._check(f"record activity {kind}", self._call.spark_prof_activity(kind, int(on)))

    def calls(self, functions: Sequence[int], *, driver: bool, on: bool) -> None:
        """Turns the recording of these functions of the runtime or driver API on or off.

        Libraries that cannot choose record all of them.
        """
        numbers = (ctypes.c_uint32 * len(functions))(*functions)
        code = self._call.spark_prof_calls(
            int(driver), numbers, ctypes.c_size_t(len(functions)), int(on)
        )
        self._check("record API calls", code)

    def flush(self, *, forced: bool) -> None:
        """Hands over the buffers whose records are complete, or all of them."""
        self._check("flush", self._call.spark_prof_flush(int(forced)))

    def clock_offset_ns(self) -> int:
        """What must be added to a time of CUPTI to get the system's."""
        theirs, ours = ctypes.c_int64(), ctypes.c_int64()
        self._call.spark_prof_clocks(ctypes.byref(theirs), ctypes.byref(ours))
        return ours.value - theirs.value

    def nodes(self) -> npt.NDArray[np.void]:
        """The graph nodes seen so far, rows of pieces.NODE_DTYPE."""
        first, parts = 0, []
        while True:
            rows = np.empty(_NODES_AT_ONCE, NODE_DTYPE)
            count = self._call.spark_prof_nodes(
                ctypes.c_size_t(first), rows.ctypes.data_as(ctypes.c_void_p), len(rows)
            )
            parts.append(rows[:count])
            first += count
            if count < len(rows):
                return np.concatenate(parts)

    def statistics(self) -> Statistics:
        """What the callbacks have seen so far."""
        values = (ctypes.c_uint64 * len(Statistics.__dataclass_fields__))()
        self._call.spark_prof_statistics(values)
        return Statistics(*values)

    @staticmethod
    def _check(action: str, code: int) -> None:
        if code:
            raise NativeError(f"libcupti refused to {action} ({_reason(code)})")


@cache
def load_native(folder: Path) -> Native:
    """capture.c on the libcupti of this process, compiled into that private folder if need be.

    There is one a process: CUPTI has one subscriber and one pair of buffer callbacks. It is not
    subscribed yet.
    """
    native = Native(_compiled(folder), _libcupti())
    with suppress(NativeError):  # an older driver: kernels then have no arguments
        native.open_driver()
    return native


def _reason(code: int) -> str:
    return _REASONS.get(code, f"CUPTI error {code}")


def _libcupti() -> str:
    """The libcupti that is loaded already; else the one that the loader finds beside torch."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.partition("/")[1] + line.partition("/")[2]
        if Path(path).name.startswith("libcupti.so"):
            return path
    for major in (13, 12):
        try:
            ctypes.CDLL(f"libcupti.so.{major}")
        except OSError:
            continue
        return f"libcupti.so.{major}"
    raise NativeError("this process has no libcupti; is its torch built for CUDA?")


def _compiled(folder: Path) -> Path:
    texts = [path.read_bytes() for path in (SOURCES[0].with_suffix(".h"), *SOURCES)]
    key = hashlib.sha256(b"".join(texts) + platform.machine().encode()).hexdigest()[:16]
    target = folder / f"capture-{key}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), *_COMPILERS))), None)
    if compiler is None:
        raise NativeError("no C compiler found; install gcc or set CC")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        library = Path(scratch) / "capture.so"
        command = [compiler, *_FLAGS, "-o", str(library), *map(str, SOURCES), *_LIBRARIES]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            stderr = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
            raise NativeError(
                f"{compiler} cannot compile {SOURCES[0].name}: {stderr or error}"
            ) from error
        os.replace(library, target)
    return target
