"""Cutting a text between events gives every event once, wherever the pieces of it begin."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from spark_prof.traces.readers import kineto_collect
from spark_prof.traces.readers.kineto_collect import TraceText
from tests.rows import each_row


def text_of(seed: int) -> tuple[str, list[Any], dict[str, Any]]:
    """A trace, its events and what is around them; names and arguments look like borders."""
    chosen = random.Random(seed)
    words = ["aten::mm", "}, {", "\\", '"', '}, {"ph": "X"', "]", "[[", "\u00e9", '\\"}]', ""]
    nested = [{"name": 1}, {"ph": [{"cat": {}}, {"cat": []}]}, [], {}]

    def event() -> dict[str, Any]:
        keys = ["ph", "cat", "name", "ts", "pid"]
        chosen.shuffle(keys)
        found: dict[str, Any] = {key: chosen.choice(words) for key in keys}
        return found | {"args": chosen.choices(nested, k=chosen.randrange(4))}

    events = [event() for _ in range(chosen.randrange(200))]
    before = {"deviceProperties": [event(), event()]} if chosen.random() < 0.5 else {}
    after = {"later": [event() for _ in range(5)]} if chosen.random() < 0.5 else {}
    document = before | {"traceEvents": events} | after
    return json.dumps(document, indent=chosen.choice([None, 1])), events, before | after


def pieces(text: bytes, chosen: random.Random) -> Iterator[bytes]:
    position = 0
    largest = chosen.choice([3, 50, 1000, 100_000])
    while position < len(text):
        size = chosen.randrange(1, largest)
        yield text[position : position + size]
        position += size


@each_row("seed", range(150))
def test_every_event_comes_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    monkeypatch.setattr(kineto_collect, "_NEAR", chosen.choice([1, 40, 1 << 13]))
    text, events, around = text_of(seed)
    trace = TraceText(pieces(text.encode(), chosen))
    found = [event for block in trace.events(json.loads) for event in block]
    assert found == events
    assert trace.around() == around
