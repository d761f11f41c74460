"""Events of Chrome's Trace Event Format, as libkineto writes it and Perfetto reads it.

Columns become text in Arrow, not row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from spark_prof.traces.bundle import ROWS

Int64s = npt.NDArray[np.int64]

_FIRST_FREE = 2_000_000_000
"""Above the thread ids that Linux gives; viewers take no number above 32 bits."""


@dataclass
class Tracks:
    """Gives out the thread ids of one process."""

    process: int
    name: str
    _names: dict[int, str] = field(default_factory=dict)

    def add(self, name: str, wanted: int | None = None) -> int:
        """A new track below those that are there; it gets the id that is wanted if that is free.

        Readers take a stream's number and a thread's id from here. Perfetto takes a 0 for the
        kernel's idle thread.
        """
        number = wanted
        if number is None or not 0 < number < _FIRST_FREE or number in self._names:
            number = _FIRST_FREE + len(self._names)
        self._names[number] = name
        return number

    def events(self) -> list[str]:
        """The metadata events that name the process and its tracks, as JSON."""
        found = [self._event("process_name", None, {"name": self.name})]
        for order, (number, name) in enumerate(self._names.items()):
            found.append(self._event("thread_name", number, {"name": name}))
            found.append(self._event("thread_sort_index", number, {"sort_index": order}))
        return found

    def _event(self, kind: str, track: int | None, values: dict[str, str | int]) -> str:
        event = {"ph": "M", "name": kind, "pid": self.process, "ts": 0, "args": values}
        return json.dumps(event if track is None else event | {"tid": track})


_TEXT = pa.large_string()
_NOTHING = pa.scalar("", _TEXT)
_TRIPLE = re.compile(r"\d{1,10}(,\d{1,10}){0,2}")


def events(*parts: str | pa.Array) -> memoryview:
    """The parts of each row joined, one row after another; a text is the same in every row."""
    scalars = [pa.scalar(p, _TEXT) if isinstance(p, str) else p for p in (*parts, "")]
    joined = pc.binary_join_element_wise(*scalars)
    _, offsets, content = joined.buffers()
    if content is None:
        return memoryview(b"")
    return memoryview(content)[: int(np.frombuffer(offsets, np.int64)[len(joined)])]


def numbers(values: pd.Series | npt.NDArray[np.int64], none: int | None = None) -> pa.Array:
    """Integers; `none` is the one that is written as null."""
    whole = pa.array(np.asarray(values, np.int64))
    text = whole.cast(_TEXT)
    return text if none is None else pc.if_else(pc.equal(whole, none), "null", text)


def microseconds(nanoseconds: npt.NDArray[np.int64]) -> pa.Array:
    """Times in us with three decimals, so that no nanosecond is lost; none may be negative."""
    whole, rest = np.divmod(nanoseconds, 1000)
    digits = pa.array([f".{number:03d}" for number in range(1000)], _TEXT)
    return pc.binary_join_element_wise(numbers(whole), digits.take(pa.array(rest)), _NOTHING)


def choices(codes: npt.NDArray[np.integer[Any]], written: Sequence[str]) -> pa.Array:
    """For each code the text at that place, which is JSON already."""
    return pa.array(list(written), _TEXT).take(pa.array(codes))


def texts(values: pd.Series, none: str | None = None) -> pa.Array:
    """Categories as JSON strings; `none` is the one that is written as null."""
    written = [
        "null" if name == none and none is not None else json.dumps(str(name))
        for name in values.cat.categories
    ]
    return choices(values.cat.codes.to_numpy(), written)


def triples(values: pd.Series) -> pa.Array:
    """Categories such as `2,1,1` as lists of numbers; anything else is an empty list."""
    written = [
        f"[{','.join(str(int(part)) for part in name.split(','))}]"
        if _TRIPLE.fullmatch(name)
        else "[]"
        for name in map(str, values.cat.categories)
    ]
    return choices(values.cat.codes.to_numpy(), written)


_LOOKED_AT = 64
"""Lanes that are tried for an interval, the newest; a damaged trace may need a million of them."""


def lanes(start: Int64s, end: Int64s, *, nested: bool = False) -> Int64s:
    """The lane of each interval, 0 for the first; an interval takes a low one that is free.

    Perfetto drops a complete event that begins inside another one of its track and ends after it:
    with programmatic dependent launch kernels of one stream do. Within a lane no two intervals do.

    Args:
        start: starts in ns, sorted; where `nested`, those that are equal by falling end.
        nested: an interval may lie inside another one of its lane, as a call inside a call.
    """
    found = np.zeros(len(start), np.int64)
    if (start[1:] >= end[:-1]).all():
        return found
    open_ends: list[list[int]] = []
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for lane in range(max(len(open_ends) - _LOOKED_AT, 0), len(open_ends)):
            stack = open_ends[lane]
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or (nested and finish <= stack[-1]):
                stack.append(finish)
                found[index] = lane
                break
        else:
            found[index] = len(open_ends)
            open_ends.append([finish])
    return found


@dataclass(frozen=True)
class RankTrace:
    """One rank and the trace that it is written to."""

    rank: int
    # Those that are exported, in order of start, as `analyzers.labels.label_kernels` returns them.
    kernels: pd.DataFrame
    origin: int  # what every time is relative to, in ns
    tracks: Tracks
    out: BinaryIO

    def write(self, *parts: str | pa.Array) -> None:
        """Writes one event a row: the parts of its JSON object, without what closes it."""
        self.out.write(events(*parts, f',"pid":{self.tracks.process}}},\n'))

    def since_origin(self, times: Int64s) -> pa.Array:
        """Times in us after the origin, as text."""
        return microseconds(times - self.origin)


def slices(rows: int) -> Iterator[slice]:
    """Stretches of at most `ROWS` rows, whose text memory can hold."""
    return (slice(first, first + ROWS) for first in range(0, rows, ROWS))
