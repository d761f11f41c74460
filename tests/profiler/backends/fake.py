"""The fake libcupti and libcuda for Python: each copy of them is a library of its own."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

_LETS_OTHERS_RUN, _HOLDS_THE_LOCK = ctypes.CDLL, ctypes.PyDLL


def compiled(folder: Path, *definitions: str, name: str = "cupti") -> Path:
    """A fake library, compiled with these names defined."""
    source = Path(__file__).with_name(f"fake_{name}.c")
    target = folder / f"lib{name}{''.join(definitions)}.so"
    compiler = shutil.which("cc") or shutil.which("gcc") or "clang"
    flags = ["-O1", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Werror"]
    flags.append("-Wl,-Bsymbolic")  # capture.c loads for all: copies would call one another
    names = [f"-D{name}" for name in definitions]
    command = [compiler, *flags, *names, "-o", str(target), str(source), "-lpthread"]
    subprocess.run(command, check=True)
    return target


class FakeCupti:
    """What a test makes the library at that path do; see fake_cupti.c."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._call = _LETS_OTHERS_RUN(self.path)
        self._locked = _HOLDS_THE_LOCK(self.path)

    def version(self, number: int) -> None:
        self._call.fake_version(number)

    def behind(self, nanoseconds: int) -> None:
        self._call.fake_behind(ctypes.c_int64(nanoseconds))

    def refuse(self, function: str, code: int) -> None:
        self._call.fake_refuse(function.encode(), code)

    def refuse_kind(self, number: int) -> None:
        self._call.fake_refuse_kind(number)

    def drop(self, records: int) -> None:
        self._call.fake_drop(ctypes.c_size_t(records))

    def deliver(self, records: bytes) -> bool:
        return not self._call.fake_deliver(records, ctypes.c_size_t(len(records)))

    def deliver_none(self) -> None:
        self._call.fake_deliver_none()

    def hold(self, records: bytes) -> bool:
        return not self._call.fake_hold(records, ctypes.c_size_t(len(records)))

    def node(self, graph: int, node: int, original: int = 0) -> bool:
        numbers = map(ctypes.c_uint64, (graph, node, original))
        return not self._call.fake_node(*numbers)

    def module(self, code: bytes | None, size: int | None = None) -> bool:
        count = len(code or b"") if size is None else size
        return not self._call.fake_module(code, ctypes.c_size_t(count))

    def others(self) -> None:
        self._call.fake_others()

    def threads(self, count: int, times: int, records: bytes, *, locked: bool = False) -> None:
        """Threads of the library's own; `locked` keeps Python's interpreter lock meanwhile."""
        call = self._locked if locked else self._call
        call.fake_threads(count, times, records, ctypes.c_size_t(len(records)))

    def kind(self, number: int) -> bool:
        return bool(self._call.fake_kind(number))

    def call(self, number: int, *, driver: bool) -> bool:
        return bool(self._call.fake_call(int(driver), number))

    def calls(self, *, driver: bool) -> set[int]:
        """The API functions whose calls are recorded."""
        return {number for number in range(1, 901) if self.call(number, driver=driver)}

    def launch(
        self, cuda: FakeCuda, kernel: int, call: int, correlation: int, *, outer: int = 0
    ) -> None:
        """A launch of that kernel by a call of the driver, inside one of the runtime."""
        arguments, extra = cuda.launched(kernel)
        pointers = map(ctypes.c_void_p, (kernel, arguments, extra))
        self._call.fake_launch(outer, call, *pointers, ctypes.c_uint32(correlation))

    @property
    def taken(self) -> bool:
        """Whether somebody is subscribed."""
        return bool(self._call.fake_taken())

    @property
    def unzeroed(self) -> int:
        """Bytes that were not 0 in the buffers that it was given."""
        return int(self._call.fake_unzeroed())


class FakeCuda:
    """The driver at that path: what a stream has captured; see fake_cuda.c."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._call = _LETS_OTHERS_RUN(self.path)
        self._call.fake_arguments.restype = self._call.fake_extra.restype = ctypes.c_void_p
        self._packed: set[int] = set()

    def kernel(
        self,
        graph: int,
        number: int,
        *arguments: bytes,
        packed: bool = False,
        library: bool = False,
    ) -> None:
        """Adds a kernel to a graph; one of a library has no function, as newer runtimes load it."""
        sizes = (ctypes.c_size_t * len(arguments))(*map(len, arguments))
        numbers = ctypes.c_uint64(graph), ctypes.c_uint64(number)
        if packed:
            self._packed.add(number)
        self._call.fake_kernel(
            *numbers, int(packed), int(library), b"".join(arguments), sizes,
            ctypes.c_size_t(len(arguments)),
        )  # fmt: skip

    def other(self, graph: int, number: int, kind: int, inner: int = 0) -> None:
        numbers = ctypes.c_uint64(graph), ctypes.c_uint64(number), kind, ctypes.c_uint64(inner)
        self._call.fake_other(*numbers)

    def status(self, number: int) -> None:
        self._call.fake_status(number)

    def refuse(self, code: int) -> None:
        self._call.fake_refuse(code)

    def launched(self, kernel: int) -> tuple[int | None, int | None]:
        """The arguments and the extra options with which that kernel is launched."""
        number = ctypes.c_uint64(kernel)
        if kernel in self._packed:
            return None, self._call.fake_extra(number)
        return self._call.fake_arguments(number), None
