"""Cutting a text between events gives every event once, wherever the pieces of it begin."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spark_prof.traces.readers import kineto_collect
from spark_prof.traces.readers.kineto_collect import TraceText
from spark_prof.traces.scopes import Calls, Scopes
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


@each_row("seed", range(30))
def test_the_open_call_is_what_a_search_of_all_calls_finds(seed: int) -> None:
    random_ = np.random.default_rng(seed)
    calls: list[tuple[int, int, int]] = []  # thread, start, end

    def grow(thread: int, start: int, end: int) -> None:
        calls.append((thread, start, end))
        if end - start > 6:
            a, b, c, d = sorted(random_.choice(np.arange(start, end), 4, replace=False).tolist())
            grow(thread, a, b)
            grow(thread, c, d)

    for thread in range(3):
        grow(thread, -50, 400 + thread)
    random_.shuffle(calls)
    thread, start, end = np.array(calls, np.int64).T
    names = [f"{t}:{s}-{e}" for t, s, e in calls]
    scopes = Scopes()
    open_calls = Calls(scopes, np.arange(len(calls)), names, thread, start, end)
    asked = random_.integers(-60, 420, 300)
    threads = random_.integers(0, 4, 300)
    for t, moment, scope in zip(threads, asked, open_calls.at(threads, asked), strict=True):
        inside = [c for c in calls if c[0] == t and c[1] <= moment <= c[2]]
        # The innermost is the one that began last and, of these, ends first.
        wanted = max(inside, key=lambda c: (c[1], -c[2]), default=None)
        assert (scopes.names[scope] if scope >= 0 else None) == (
            wanted and f"{wanted[0]}:{wanted[1]}-{wanted[2]}"
        )
