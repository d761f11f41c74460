"""Sorts the events of a Kineto trace by what they are, and keeps their numbers as columns.

Names are numbers too: a few thousand names stand for millions of events.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from decimal import Decimal, InvalidOperation
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from spark_prof.traces.readers.kineto_events import (
    Event,
    GpuArguments,
    HostArguments,
    decode_arguments,
)

Int64s = npt.NDArray[np.int64]

_EXACT_US = 2**43
"""A float beyond this many microseconds does not tell one nanosecond from the next."""

_LATEST_NS = 1 << 61
"""Times further than this many nanoseconds from the trace's base are damage."""


class InexactTimesError(Exception):
    """Times were read as floats that do not tell nanoseconds apart."""


class Numbered(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, thing: Any) -> int:
        number = self[thing] = len(self)
        return number


def plain_text(text: str) -> str:
    """The text; half of a surrogate pair, which no file can hold, becomes a question mark."""
    return text if text.isascii() else text.encode(errors="replace").decode()


class Rows:
    """Events of one kind as columns.

    Args:
        names: numbers the names and categories, of all kinds together.
        threads: numbers the pairs of process and thread.

    Attributes:
        dropped: how many events had no name or no time that can be.
    """

    def __init__(self, names: Numbered, threads: Numbered) -> None:
        self._names, self._threads = names, threads
        self._columns: dict[str, array[int]] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self.column("name"))

    def column(self, name: str) -> Int64s:
        """One column; `name`, `category` and `thread` are numbers, times are ns after the base."""
        return np.frombuffer(self._columns.get(name, array("q")), np.int64)

    def add(self, events: Sequence[Event]) -> None:
        """Appends the events that have a name, a start and an end.

        Raises:
            InexactTimesError: the events have to be decoded with their times as decimals.
        """
        start, has_start = _nanoseconds([event.ts for event in events])
        length, has_length = _nanoseconds([event.dur for event in events])
        named = np.array([bool(event.name) for event in events], bool)
        good = has_start & has_length & named & (length >= 0)
        if not good.all():
            self.dropped += int((~good).sum())
            events = [event for event, is_good in zip(events, good, strict=True) if is_good]
            start, length = start[good], length[good]
        names, threads = self._names, self._threads
        self._extend("name", [names[event.name] for event in events])
        self._extend("category", [names[event.cat] for event in events])
        self._extend("thread", [threads[event.pid, event.tid] for event in events])
        self._columns.setdefault("start_ns", array("q")).frombytes(start.tobytes())
        self._columns.setdefault("end_ns", array("q")).frombytes((start + length).tobytes())
        self._more(events)

    def of_threads(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """The rows of the chosen threads, by their number."""
        taken = copy(self)
        mine = np.append(chosen, False)[self.column("thread")]
        taken._columns = {
            name: array("q", self.column(name)[mine].tobytes()) for name in self._columns
        }
        taken.dropped = 0
        return taken

    def _more(self, events: Sequence[Event]) -> None:
        """Appends the columns that only this kind has."""

    def _extend(self, name: str, values: list[int]) -> None:
        self._columns.setdefault(name, array("q")).extend(values)


class HostRows(Rows):
    """API calls or operators, with `correlation` and `external`, -1 where they have none."""

    def _more(self, events: Sequence[Event]) -> None:
        found = decode_arguments(events, HostArguments)
        self._extend("correlation", [item.correlation for item in found])
        self._extend("external", [item.external for item in found])


class GpuRows(Rows):
    """What ran on a GPU, with the columns of GpuArguments; `grid` and `block` are numbers.

    Attributes:
        shapes: the grids and blocks that they number.
    """

    def __init__(self, names: Numbered, threads: Numbered) -> None:
        super().__init__(names, threads)
        self.shapes = Numbered()

    def _more(self, events: Sequence[Event]) -> None:
        found = decode_arguments(events, GpuArguments)
        shapes = self.shapes
        self._extend("device", [item.device for item in found])
        self._extend("stream", [item.stream for item in found])
        self._extend("correlation", [item.correlation for item in found])
        self._extend("graph_node", [item.graph_node for item in found])
        self._extend("grid", [shapes[item.grid] for item in found])
        self._extend("block", [shapes[item.block] for item in found])
        self._extend("registers", [item.registers for item in found])
        self._extend("shared_bytes", [item.shared_bytes for item in found])
        self._extend("bytes", [item.bytes for item in found])
        self._extend("external", [max(item.external, item.external_2021) for item in found])


def _nanoseconds(microseconds: Sequence[Any]) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Whole nanoseconds, and which of them are any; the others are 0."""
    try:
        found = np.array(microseconds)
    except (ValueError, OverflowError):
        found = np.array(microseconds, object)
    if found.dtype.kind not in "if":
        return _from_any(microseconds)
    with np.errstate(invalid="ignore"):
        good = np.abs(found) < _LATEST_NS // 1000
    fraction, whole = np.modf(np.where(good, found, 0))
    if np.any((np.abs(whole) >= _EXACT_US) & (fraction != 0)):
        raise InexactTimesError
    return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64), good


def _from_any(microseconds: Sequence[Any]) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """The same for decimals, texts of numbers and what is no number."""
    numbers, good = [], []
    for value in microseconds:
        try:
            found = Decimal(value) if isinstance(value, (int, float, str, Decimal)) else None
        except InvalidOperation:
            found = None
        fits = found is not None and _is_small(found) and abs(found) < _LATEST_NS // 1000
        numbers.append(int((found * 1000).to_integral_value()) if found and fits else 0)
        good.append(fits)
    return np.array(numbers, np.int64), np.array(good, bool)


def _is_small(number: Decimal) -> bool:
    """Whether it can be reckoned with: no NaN, no infinity and no exponent of millions."""
    return number.is_finite() and number.adjusted() < 20
