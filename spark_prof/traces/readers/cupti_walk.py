"""Finds the records in a raw CUPTI buffer: they have different lengths, one after another.

Where each record begins follows from the kinds of all before it. What is usual is quick: a pattern
of kinds that repeats (a thousand kernels; launch, kernel, launch, kernel) is guessed from the last
records and checked for all its repetitions at once. Only the rest is walked one by one.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]

_ONE_BY_ONE, _LONGEST_PATTERN = 32, 8
_FIRST_GUESS, _MOST = 64, 1 << 17


@dataclass(frozen=True)
class Found:
    """Some records of a buffer.

    Attributes:
        places: for each kind where its records begin, in bytes.
        end: where the record after them begins, in bytes.
        problem: why the walk stopped here, empty where it did not.
    """

    places: dict[int, Places]
    end: int
    problem: str = ""

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


def walk(words: Words, sizes: Sequence[int]) -> Iterator[Found]:
    """Finds the records of one buffer, in groups of a bounded size.

    Args:
        words: the buffer.
        sizes: bytes of a record by its kind, 0 for a kind that does not exist.
    """
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
            of, found = np.frombuffer(kinds, np.uint8), np.frombuffer(begins, np.int64)
            for kind in set(kinds):
                places[kind].insert(0, found[of == kind])
            yield Found({k: _sorted(v) * 4 for k, v in places.items()}, at * 4, problem)
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
    done, guess = 0, _FIRST_GUESS
    while done < most:
        count = wanted = min(guess, most - done)
        begin = at + done * length
        for kind, offset in zip(pattern, offsets, strict=True):
            differs = words[begin + offset : begin + wanted * length : length] != kind
            first = int(differs.argmax())
            if differs[first]:
                count = min(count, first)
        done += count
        if count < wanted:
            break
        guess *= 8
    return done, offsets, length
