"""Decodes the events of a Kineto trace: fast where they are as Kineto writes them, else one by one.

Format: Chrome's trace event format as libkineto's output_json.cpp writes it. `ts` and `dur` are
microseconds with up to three decimals.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import msgspec

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
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: Int32 = msgspec.field(default=0, name="registers per thread")
    shared_bytes: Int32 = msgspec.field(default=0, name="shared memory")
    bytes: Int64 = 0
    external: Int64 = msgspec.field(default=-1, name="External id")
    external_2021: Int64 = msgspec.field(default=-1, name="external id")


class HostArguments(msgspec.Struct, gc=False):
    """What an API call or operator says about itself."""

    correlation: Int64 = -1
    external: Int64 = msgspec.field(default=-1, name="External id")


Arguments = TypeVar("Arguments", GpuArguments, HostArguments)


class EventDecoder:
    """Decodes blocks of events.

    Args:
        exact: whether times are read as decimals, which takes longer than as floats.

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
        """Decodes a JSON list of events.

        Raises:
            ValueError, RecursionError: it is no JSON.
        """
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
        found: list[Arguments] = _LISTS[kind].decode(together)
    except (ValueError, RecursionError):
        return [_arguments(bytes(event.args), kind) for event in events]
    return found


def _arguments(text: bytes, kind: type[Arguments]) -> Arguments:
    found = kind()
    try:
        items = json.loads(text.decode(errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return found
    for field in msgspec.structs.fields(kind) if isinstance(items, dict) else ():
        with suppress(msgspec.ValidationError):
            value = items.get(field.encode_name, field.default)
            setattr(found, field.name, msgspec.convert(value, field.type))
    return found
