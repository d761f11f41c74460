"""Reads the files of raw CUPTI buffers that a recorded worker writes (docs/bundle.md)."""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from spark_prof.errors import CommandError
from spark_prof.traces.readers.cupti_records import (
    KERNELS,
    MARKER,
    NEWEST,
    OLDEST,
    record_dtype,
    record_sizes,
)
from spark_prof.traces.readers.cupti_walk import Found, walk

T = TypeVar("T")

MAGIC = b"SPCUPTI1"
HEADER = struct.Struct("<8sIIQQ")
"""Magic, libcupti's version, 0, bytes that follow, records dropped in the process so far."""
_MOST_THREADS = 4


@dataclass(frozen=True)
class Records:
    """Some records of one buffer."""

    version: int
    _data: npt.NDArray[np.uint8]
    _found: Found

    def rows(self, kind: int) -> Any:
        """The records of that kind, with the fields of `record_dtype`."""
        return self._found.rows(self._data, kind, record_dtype(kind, self.version))

    def count(self, kind: int) -> int:
        """How many records of that kind there are."""
        return len(self._found.places.get(kind, ()))

    def __len__(self) -> int:
        return sum(map(len, self._found.places.values()))


def read_records(path: Path, lost: list[str]) -> Iterator[Records]:
    """All records of the file; what it lacks is added to `lost`.

    The memory of the records is used again: they are only good until the next ones are asked for.

    Raises:
        CommandError: the file cannot be read, is no such file, or comes from a libcupti whose
            records are not known.
    """
    memory = _Memory()
    with _opened(path) as file:
        for buffer in _buffers(file, path, lost):
            data = memory.fill(file, buffer, path)
            yield from _records(data, buffer.version, path, lost)


def map_records(path: Path, lost: list[str], work: Callable[[Records], T]) -> Iterator[T]:
    """What `work` makes of all records of the file, in their order; it runs on several threads.

    The memory of the records is used again: `work` must not keep any of it.

    Raises:
        CommandError: as `read_records`.
    """
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    local = threading.local()

    def one(file: int, buffer: _Buffer) -> tuple[list[T], list[str]]:
        if not hasattr(local, "memory"):
            local.memory = _Memory()
        mine: list[str] = []
        data = local.memory.fill(file, buffer, path)
        return [work(r) for r in _records(data, buffer.version, path, mine)], mine

    pending: deque[Future[tuple[list[T], list[str]]]] = deque()

    def oldest() -> list[T]:
        found, mine = pending.popleft().result()
        lost.extend(mine)
        return found

    with _opened(path) as file, ThreadPoolExecutor(threads) as pool:
        try:
            for buffer in _buffers(file, path, lost):
                pending.append(pool.submit(one, file, buffer))
                if len(pending) > threads:
                    yield from oldest()
            while pending:
                yield from oldest()
        finally:
            pool.shutdown(cancel_futures=True)


def name_pointers(path: Path) -> set[int]:
    """The addresses of all kernel names in the file.

    Raises:
        CommandError: as `read_records`.
    """
    return _pointers(path, KERNELS, ("name",))


def marker_pointers(path: Path) -> set[int]:
    """The addresses of all names and domains of NVTX markers in the file.

    Raises:
        CommandError: as `read_records`.
    """
    return _pointers(path, (MARKER,), ("name", "domain"))


def _pointers(path: Path, kinds: Sequence[int], fields: Sequence[str]) -> set[int]:
    found: set[int] = set()
    for records in read_records(path, []):
        for kind in filter(records.count, kinds):
            rows = records.rows(kind)
            for field in fields:
                found.update(np.unique(rows[field]).tolist())
    return found - {0}


@dataclass(frozen=True)
class _Buffer:
    """Where a buffer lies in the file, in bytes."""

    at: int
    size: int
    version: int


class _Memory:
    """Memory for one buffer after another: taking it anew for each costs as much as reading."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def fill(self, file: int, buffer: _Buffer, path: Path) -> npt.NDArray[np.uint8]:
        """The content of the buffer, until the next one is filled in."""
        if len(self._bytes) < buffer.size:
            self._bytes = bytearray(buffer.size)
        rest, at = memoryview(self._bytes)[: buffer.size], buffer.at
        while len(rest):
            count = os.preadv(file, [rest], at)
            if not count:
                raise CommandError(f"{path} became shorter while it was read")
            rest, at = rest[count:], at + count
        return np.frombuffer(self._bytes, np.uint8, buffer.size)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        with path.open("rb", buffering=0) as file:
            yield file.fileno()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error


def _buffers(file: int, path: Path, lost: list[str]) -> Iterator[_Buffer]:
    """The whole buffers of the file."""
    size = os.fstat(file).st_size
    at = dropped = 0
    while at < size:
        header = os.pread(file, HEADER.size, at)
        if len(header) < HEADER.size:
            lost.append(f"{path.name} was cut off: its last buffer is missing")
            break
        magic, version, _, length, dropped_now = HEADER.unpack(header)
        if magic != MAGIC:
            if at == 0:
                raise CommandError(f"{path} is no file of CUPTI buffers")
            lost.append(f"{path.name} is damaged: {size - at} bytes were skipped")
            break
        at += HEADER.size
        if length > size - at:
            lost.append(f"{path.name} was cut off: its last buffer of {length} bytes is missing")
            break
        if version < OLDEST:
            raise CommandError(
                f"{path} was written by libcupti {version}, older than CUDA 12.4: it is not known "
                "how its records look"
            )
        dropped = dropped_now
        yield _Buffer(at, length, version)
        at += length
    if dropped:
        lost.append(f"CUPTI dropped {dropped} records since the process began to record")


def _records(
    data: npt.NDArray[np.uint8], version: int, path: Path, lost: list[str]
) -> Iterator[Records]:
    words = data[: len(data) // 4 * 4].view(np.uint32)
    for found in walk(words, record_sizes(version)):
        if found.problem:
            if version > NEWEST:
                raise CommandError(
                    f"{path} was written by libcupti {version}, newer than {NEWEST}: it is not "
                    f"known how its records look ({found.problem}); install a newer spark-prof"
                )
            lost.append(
                f"{path.name}: {len(data) - found.end} bytes of a buffer were skipped, "
                f"{found.problem}"
            )
        yield Records(version, data, found)
