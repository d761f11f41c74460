"""The fake libcupti of fake_cupti.c, for Python: each copy of it is a library of its own."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

__all__ = ["SOURCE", "FakeCupti", "compiled"]

SOURCE = Path(__file__).with_name("fake_cupti.c")

_LETS_OTHERS_RUN, _HOLDS_THE_LOCK = ctypes.CDLL, ctypes.PyDLL


def compiled(folder: Path, *definitions: str) -> Path:
    """The fake library, compiled with these names defined."""
    target = folder / f"libcupti{''.join(definitions)}.so"
    compiler = shutil.which("cc") or shutil.which("gcc") or "clang"
    flags = ["-O1", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Werror"]
    flags.append("-Wl,-Bsymbolic")  # capture.c loads for all: copies would call one another
    names = [f"-D{name}" for name in definitions]
    command = [compiler, *flags, *names, "-o", str(target), str(SOURCE), "-lpthread"]
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

    def resource(self, number: int) -> bool:
        return bool(self._call.fake_resource(number))

    @property
    def unzeroed(self) -> int:
        """Bytes that were not 0 in the buffers that it was given."""
        return int(self._call.fake_unzeroed())

    @property
    def requested(self) -> int:
        """Buffers that it was given."""
        return int(self._call.fake_requested())
