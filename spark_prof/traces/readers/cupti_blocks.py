"""Reads the files of raw CUPTI buffers that a recorded worker writes (docs/bundle.md).

Buffers are looked at one after another and in their own memory, which is used again: arrays of
records are only good until the next ones are asked for.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.errors import CommandError
from spark_prof.traces.readers.cupti_records import (
    KERNELS,
    NEWEST,
    OLDEST,
    record_dtype,
    record_sizes,
)
from spark_prof.traces.readers.cupti_walk import Found, walk

__all__ = ["HEADER", "MAGIC", "Records", "name_pointers", "read_records"]

MAGIC = b"SPCUPTI1"
HEADER = struct.Struct("<8sIIQQ")
"""Magic, libcupti's version, 0, bytes that follow, records dropped in the process so far."""


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


def read_records(path: Path, lost: list[str]) -> Iterator[Records]:
    """All records of the file; what it lacks is added to `lost`.

    Raises:
        CommandError: the file cannot be read, is no such file, or comes from a libcupti whose
            records are not known.
    """
    try:
        with path.open("rb", buffering=0) as file:
            yield from _read(file.fileno(), path, lost)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error


def name_pointers(path: Path) -> set[int]:
    """The addresses of all kernel names in the file.

    Raises:
        CommandError: as `read_records`.
    """
    found: set[int] = set()
    for records in read_records(path, []):
        for kind in KERNELS:
            if records.count(kind):
                found.update(np.unique(records.rows(kind)["name"]).tolist())
    return found - {0}


def _read(file: int, path: Path, lost: list[str]) -> Iterator[Records]:
    size = os.fstat(file).st_size
    memory = bytearray()
    at = dropped = 0
    while at < size:
        header = os.read(file, HEADER.size)
        at += HEADER.size
        if len(header) < HEADER.size:
            lost.append(f"{path.name} was cut off: its last buffer is missing")
            break
        magic, version, _, length, dropped_now = HEADER.unpack(header)
        if magic != MAGIC:
            if at == HEADER.size:
                raise CommandError(f"{path} is no file of CUPTI buffers")
            lost.append(f"{path.name} is damaged: {size - at + HEADER.size} bytes were skipped")
            break
        if length > size - at:
            lost.append(f"{path.name} was cut off: its last buffer of {length} bytes is missing")
            break
        dropped = dropped_now
        if version < OLDEST:
            raise CommandError(
                f"{path} was written by libcupti {version}, older than CUDA 12.4: it is not known "
                "how its records look"
            )
        if len(memory) < length:
            memory = bytearray(length)
        _fill(file, memoryview(memory)[:length], path)
        at += length
        yield from _records(np.frombuffer(memory, np.uint8, length), version, path, lost)
    if dropped:
        lost.append(f"CUPTI dropped {dropped} records since the process began to record")


def _fill(file: int, buffer: memoryview, path: Path) -> None:
    while len(buffer):
        count = os.readv(file, [buffer])
        if not count:
            raise CommandError(f"{path} became shorter while it was read")
        buffer = buffer[count:]


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
