"""Reads the files of raw CUPTI buffers that a recorded worker writes (docs/bundle.md).

Records have different lengths, one after another: where each begins follows from the kinds of all
before it. What is usual is quick: a pattern of kinds that repeats (a thousand kernels; launch,
kernel, launch, kernel) is guessed from the last records and checked for all its repetitions at
once. Only the rest is walked one by one.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError, os_errors
from spark_prof.traces.readers.cupti_records import (
    KERNELS,
    MARKER,
    NEWEST,
    OLDEST,
    record_dtype,
    record_sizes,
)

Words = npt.NDArray[np.uint32]
Places = Int64s

_ONE_BY_ONE, _LONGEST_PATTERN = 32, 8
_FIRST_GUESS, _MOST = 64, 1 << 17


@dataclass(frozen=True)
class RecordGroup:
    """Some records of a buffer."""

    places: dict[int, Places]  # for each kind where its records begin, in bytes
    end: int  # where the record after them begins, in bytes
    problem: str = ""  # why the walk stopped here, empty where it did not

    def rows(self, data: npt.NDArray[np.uint8], kind: int, dtype: np.dtype[Any]) -> Any:
        """The records of that kind as an array of that dtype, without a copy if evenly spaced."""
        places = self.places.get(kind)
        if places is None:
            return np.empty(0, dtype)
        stride = int(places[1] - places[0]) if len(places) > 1 else dtype.itemsize
        if (places[1:] - places[:-1] == stride).all():
            return np.ndarray(len(places), dtype, data, int(places[0]), (stride,))
        # Every byte that a record could begin at, as a row; only the wanted ones are copied.
        every = np.ndarray(len(data) - dtype.itemsize + 1, dtype, data, 0, (1,))
        return every[places]


def walk(words: Words, sizes: Sequence[int]) -> Iterator[RecordGroup]:
    """Finds the records of one buffer in bounded groups; `sizes` has the bytes of each kind."""
    steps = [size // 4 for size in sizes]
    places: defaultdict[int, list[Places]] = defaultdict(list)
    kinds, begins = bytearray(), array("q")
    at, count, problem = 0, 0, ""
    while at < len(words) and not problem:
        at, problem = _one_by_one(words, steps, at, kinds, begins)
        pattern = _repeating(kinds)
        if pattern:
            repeats, offsets, length = _repeats(words, steps, at, pattern)
            for kind in set(pattern) if repeats else ():
                mine = [o for k, o in zip(pattern, offsets, strict=True) if k == kind]
                first = np.arange(at, at + repeats * length, length)
                places[kind].append((first[:, None] + mine).ravel())
            at += repeats * length
            count += repeats * len(pattern)
        if count + len(kinds) >= _MOST or at >= len(words) or problem:
            of, offsets_of_kinds = np.frombuffer(kinds, np.uint8), np.frombuffer(begins, np.int64)
            for kind in set(kinds):
                places[kind].insert(0, offsets_of_kinds[of == kind])
            yield RecordGroup({k: _sorted(v) * 4 for k, v in places.items()}, at * 4, problem)
            places.clear()
            kinds, begins, count = bytearray(), array("q"), 0


def _sorted(parts: list[Places]) -> Places:
    """All of them in the order of the buffer."""
    every = np.concatenate(parts)
    if (every[1:] < every[:-1]).any():
        every.sort()
    return every


def _one_by_one(
    words: Words, steps: Sequence[int], at: int, kinds: bytearray, begins: array[int]
) -> tuple[int, str]:
    """Adds the next few records; where the one after them begins, and a problem."""
    view = words.data
    end = len(words)
    for _ in range(_ONE_BY_ONE):
        if at >= end:
            break
        kind = view[at]
        step = steps[kind] if kind < len(steps) else 0
        if not step:
            return at, f"no record is of kind {kind}"
        if at + step > end:
            return at, f"a record of kind {kind} is cut off"
        kinds.append(kind)
        begins.append(at)
        at += step
    return at, ""


def _repeating(kinds: bytearray) -> bytearray:
    """The shortest pattern that the last records repeat; empty where they repeat none."""
    last = kinds[-2 * _LONGEST_PATTERN :]
    if len(last) == 2 * _LONGEST_PATTERN:
        for length in range(1, _LONGEST_PATTERN + 1):
            if last[length:] == last[:-length]:
                return last[-length:]
    return bytearray()


def _repeats(
    words: Words, steps: Sequence[int], at: int, pattern: bytearray
) -> tuple[int, list[int], int]:
    """How often the pattern follows, where its records begin in it, and its length in words."""
    offsets = [0]
    for kind in pattern:
        offsets.append(offsets[-1] + steps[kind])
    length = offsets.pop()
    most = min((len(words) - at) // length, _MOST // len(pattern))
    repeats, guess = 0, _FIRST_GUESS
    while repeats < most:
        count = most_now = min(guess, most - repeats)
        begin = at + repeats * length
        for kind, offset in zip(pattern, offsets, strict=True):
            differs = words[begin + offset : begin + most_now * length : length] != kind
            first = int(differs.argmax())
            if differs[first]:
                count = min(count, first)
        repeats += count
        if count < most_now:
            break
        guess *= 8
    return repeats, offsets, length


MAGIC = b"SPCUPTI1"
HEADER = struct.Struct("<8sIIQQ")
"""Magic, libcupti's version, 0, bytes that follow, records dropped in the process so far."""


@dataclass(frozen=True)
class Records:
    """Some records of one buffer."""

    version: int
    _data: npt.NDArray[np.uint8]
    _group: RecordGroup

    def rows(self, kind: int) -> Any:
        """The records of that kind, with the fields of `record_dtype`."""
        return self._group.rows(self._data, kind, record_dtype(kind, self.version))

    def count(self, kind: int) -> int:
        """How many records of that kind there are."""
        return len(self._group.places.get(kind, ()))

    def __len__(self) -> int:
        return sum(map(len, self._group.places.values()))


def read_records(path: Path, lost: list[str]) -> Iterator[Records]:
    """All records of the file; what it lacks is added to `lost`."""
    for version, data in _buffers(path, lost):
        words = data[: len(data) // 4 * 4].view(np.uint32)
        for group in walk(words, record_sizes(version)):
            if group.problem:
                if version > NEWEST:
                    raise CommandError(
                        f"{path} was written by libcupti {version}, newer than {NEWEST}: it is not "
                        f"known how its records look ({group.problem}); install a newer spark-prof"
                    )
                lost.append(
                    f"{path.name}: {len(data) - group.end} bytes of a buffer were skipped, "
                    f"{group.problem}"
                )
            yield Records(version, data, group)


def name_pointers(path: Path) -> tuple[set[int], set[int]]:
    """The addresses of all kernel names in the file, and those of NVTX names and domains."""
    kernels: set[int] = set()
    markers: set[int] = set()
    for records in read_records(path, []):
        for kind in filter(records.count, KERNELS):
            kernels.update(np.unique(records.rows(kind)["name"]).tolist())
        if records.count(MARKER):
            for field in ("name", "domain"):
                markers.update(np.unique(records.rows(MARKER)[field]).tolist())
    return kernels - {0}, markers - {0}


def _buffers(path: Path, lost: list[str]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """The version that wrote each whole buffer of the file, and its content."""
    at = dropped = 0
    with os_errors(f"cannot read {path}"), path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        while at < size:
            header = file.read(HEADER.size)
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
                lost.append(
                    f"{path.name} was cut off: its last buffer of {length} bytes is missing"
                )
                break
            if version < OLDEST:
                raise CommandError(
                    f"{path} was written by libcupti {version}, older than CUDA 12.4: it is not "
                    "known how its records look"
                )
            dropped = dropped_now
            yield version, np.fromfile(file, np.uint8, length)
            at += length
    if dropped:
        lost.append(f"CUPTI dropped {dropped} records since the process began to record")
