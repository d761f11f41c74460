"""Decodes the events of a Kineto trace and keeps their numbers as columns.

Format: Chrome's trace event format as libkineto's output_json.cpp writes it. `ts` and `dur` are
microseconds with up to three decimals. Events are decoded together where they are as Kineto writes
them, else one by one. Names are numbers too: a few thousand names stand for millions of events.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Annotated, Any, Self, TypeVar

import msgspec
import numpy as np

from spark_prof.arrays import Flags, Int64s

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Event(msgspec.Struct, gc=False):
    """One event; its arguments are decoded later, where somebody asks for them."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float | str | Decimal | None = None
    dur: int | float | str | Decimal | None = 0
    pid: int | str = -1
    tid: int | str = -1
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _FloatEvent(Event, gc=False):
    ts: int | float | str | None = None
    dur: int | float | str | None = 0


class _DecimalEvent(Event, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = Decimal(0)


class GpuArguments(msgspec.Struct, gc=False):
    """What a kernel, copy or memset says about itself."""

    device: Int32 = 0
    stream: Int64 = 0
    correlation: Int64 = -1
    graph_node: Int64 = msgspec.field(default=0, name="graph node id")
    graph: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = msgspec.field(default=0, name="graph id")
    # What torch.cuda.graph_annotations.mark_kernels said of the graph's node, since PyTorch 2.15.
    marked: str = msgspec.field(default="", name="name")
    annotation: Any = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: Int32 = msgspec.field(default=0, name="registers per thread")
    shared_bytes: Int32 = msgspec.field(default=0, name="shared memory")
    bytes: Int64 = 0
    external: Int64 = msgspec.field(default=-1, name="External id")
    external_2021: Int64 = msgspec.field(default=-1, name="external id")

    @property
    def node(self) -> int:
        """The graph's node as CUPTI numbers it: PyTorch's Python exporter cuts the graph off."""
        low = 0 <= self.graph_node < 1 << 32
        return self.graph << 32 | self.graph_node if low else self.graph_node

    @property
    def note(self) -> str:
        """The innermost name that the node was marked with, empty for none."""
        return self.marked or _name_in(self.annotation)


def _name_in(annotation: Any) -> str:
    """The name in what several marks of a node are written as: a list, or its text."""
    if isinstance(annotation, str):
        try:
            annotation = msgspec.json.decode(annotation)
        except ValueError:
            return str(annotation)
    marks: list[Any] = annotation if isinstance(annotation, list) else [annotation]
    names = [mark.get("name") if isinstance(mark, dict) else mark for mark in marks]
    return next((name for name in reversed(names) if isinstance(name, str)), "")


GPU_NUMBERS = (
    "device", "stream", "correlation", "graph_node", "registers", "shared_bytes", "bytes",
)  # fmt: skip
"""Its arguments that are a number of their own."""


class HostArguments(msgspec.Struct, gc=False):
    """What an API call or operator says about itself."""

    correlation: Int64 = -1
    external: Int64 = msgspec.field(default=-1, name="External id")


Arguments = TypeVar("Arguments", GpuArguments, HostArguments)


class EventDecoder:
    """Decodes blocks of events.

    Attributes:
        damaged: how many events were not objects with names and categories.
        repaired: how many blocks were no strict JSON, and had to be read with NaN, infinity,
            control characters or bytes that are no UTF-8.
    """

    def __init__(self, exact: bool) -> None:
        self.damaged = 0
        self.repaired = 0
        kind = _DecimalEvent if exact else _FloatEvent
        self._decode: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def __call__(self, block: bytes) -> Sequence[Event]:
        """Decodes a JSON list of events."""
        try:
            events: list[Event] = self._decode.decode(block)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._one_by_one(block)
        return events

    def _one_by_one(self, block: bytes) -> list[Event]:
        items: Any
        try:
            items = _ANYTHING.decode(block)
        except ValueError:
            text = block.decode(errors="replace")
            items = json.loads(text, strict=False, parse_float=Decimal)
            self.repaired += 1
        events = [event for item in items if (event := _event(item)) is not None]
        self.damaged += len(items) - len(events)
        return events


_ANYTHING = msgspec.json.Decoder(float_hook=Decimal)


def _event(item: Any) -> Event | None:
    """The event, if it is an object and what must be a text is one."""
    if not isinstance(item, dict):
        return None
    texts = {key: item.get(key, "") for key in ("ph", "cat", "name")}
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    arguments = item.get("args")
    if not isinstance(arguments, dict):
        arguments = {}
    return Event(
        **texts,
        ts=_number(item.get("ts")),
        dur=_number(item.get("dur", 0)),
        pid=_identity(item.get("pid")),
        tid=_identity(item.get("tid")),
        args=msgspec.Raw(json.dumps(arguments, default=float).encode()),
    )


def _number(value: object) -> int | float | str | Decimal | None:
    return value if isinstance(value, (int, float, str, Decimal)) else None


def _identity(value: object) -> int | str:
    return value if isinstance(value, (int, str)) else -1


_LISTS: dict[type[Any], msgspec.json.Decoder[Any]] = {
    GpuArguments: msgspec.json.Decoder(list[GpuArguments]),
    HostArguments: msgspec.json.Decoder(list[HostArguments]),
}


def decode_arguments(events: Sequence[Event], kind: type[Arguments]) -> list[Arguments]:
    """The arguments of each event; what is of a wrong type has its default."""
    together = b"[" + b",".join([event.args for event in events]) + b"]"
    try:
        arguments: list[Arguments] = _LISTS[kind].decode(together)
    except (ValueError, RecursionError):
        return [_arguments(bytes(event.args), kind) for event in events]
    return arguments


def _arguments(text: bytes, kind: type[Arguments]) -> Arguments:
    arguments = kind()
    try:
        items = json.loads(text.decode(errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return arguments
    for field in msgspec.structs.fields(kind) if isinstance(items, dict) else ():
        with suppress(msgspec.ValidationError):
            value = items.get(field.encode_name, field.default)
            setattr(arguments, field.name, msgspec.convert(value, field.type))
    return arguments


_EXACT_US = 2**43
"""A float beyond this many microseconds does not tell one nanosecond from the next."""

_LATEST_NS = 1 << 61  # times further than this many nanoseconds from the trace's base are damage


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


class EventColumns:
    """Events of one kind as columns.

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
        self._add_columns(events)

    def of_threads(self, chosen: Flags) -> Self:
        """The rows of the chosen threads, by their number."""
        part = copy(self)
        mine = np.append(chosen, False)[self.column("thread")]
        part._columns = {
            name: array("q", self.column(name)[mine].tobytes()) for name in self._columns
        }
        part.dropped = 0
        return part

    def _add_columns(self, events: Sequence[Event]) -> None:
        """Appends the columns that only this kind has."""

    def _extend(self, name: str, values: Iterable[int]) -> None:
        self._columns.setdefault(name, array("q")).extend(values)


class HostRows(EventColumns):
    """API calls or operators, with `correlation` and `external`, -1 where they have none."""

    def _add_columns(self, events: Sequence[Event]) -> None:
        arguments = decode_arguments(events, HostArguments)
        for name in ("correlation", "external"):
            self._extend(name, map(attrgetter(name), arguments))


class GpuRows(EventColumns):
    """What ran on a GPU, with the columns of GpuArguments.

    `grid` and `block` are numbers, and so is `note`, that of a name, -1 for none.
    """

    def __init__(self, names: Numbered, threads: Numbered) -> None:
        super().__init__(names, threads)
        self.shapes = Numbered()

    def _add_columns(self, events: Sequence[Event]) -> None:
        arguments = decode_arguments(events, GpuArguments)
        for name in GPU_NUMBERS:
            key = "node" if name == "graph_node" else name
            self._extend(name, map(attrgetter(key), arguments))
        notes = (item.note for item in arguments)
        self._extend("note", [self._names[note] if note else -1 for note in notes])
        self._extend("grid", [self.shapes[item.grid] for item in arguments])
        self._extend("block", [self.shapes[item.block] for item in arguments])
        self._extend("external", [max(item.external, item.external_2021) for item in arguments])


def _nanoseconds(microseconds: Sequence[Any]) -> tuple[Int64s, Flags]:
    """Whole nanoseconds, and which of them are any; the others are 0."""
    try:
        numbers = np.array(microseconds)
    except (ValueError, OverflowError):
        numbers = np.array(microseconds, object)
    if numbers.dtype.kind not in "if":
        return _from_any(microseconds)
    with np.errstate(invalid="ignore"):
        good = np.abs(numbers) < _LATEST_NS // 1000
    fraction, whole = np.modf(np.where(good, numbers, 0))
    if np.any((np.abs(whole) >= _EXACT_US) & (fraction != 0)):
        raise InexactTimesError
    return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64), good


def _from_any(microseconds: Sequence[Any]) -> tuple[Int64s, Flags]:
    """The same for decimals, texts of numbers and what is no number."""
    numbers, good = [], []
    for value in microseconds:
        try:
            number = Decimal(value) if isinstance(value, (int, float, str, Decimal)) else None
        except InvalidOperation:
            number = None
        # Infinity, NaN and exponents of millions cannot be reckoned with.
        usable = number is not None and number.is_finite() and number.adjusted() < 20
        fits = usable and number is not None and abs(number) < _LATEST_NS // 1000
        numbers.append(int((number * 1000).to_integral_value()) if number and fits else 0)
        good.append(fits)
    return np.array(numbers, np.int64), np.array(good, bool)
