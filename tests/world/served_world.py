"""Requests of a server that are made up whole, and their times by brute force, tick by tick.

A tick is a nanosecond. Nothing of the truth is taken from spark_prof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
from hypothesis import strategies as st

from spark_prof.traces.bundle import Bundle

PARTS = ("front_end", "queue", "preempted", "own", "shared", "between", "output")
FIRST_ITERATION = 40  # no table begins with the first batch of an engine
_BATCH = {"free_blocks": 10, "running": 3, "waiting": 2}


@dataclass(frozen=True)
class Batch:
    """One batch of the scheduler: when it was made and taken in, and what it computed."""

    begin: int
    update: int
    sampled: int = 0  # when the worker was done; 0 where its step is not recorded
    tokens: int = 8
    limit: str = "none"


@dataclass(frozen=True)
class Request:
    """One request; its prompt is read in some batches, its first token is that of the last one."""

    arrival: int
    queued: int
    reads: tuple[tuple[int, int], ...]  # the place of a batch, and the tokens read in it
    last: int = 0  # the batch of its last token
    tokens: int = 1
    preempted: int = 0
    finish: str = "stop"


@dataclass(frozen=True)
class Served:
    """Batches and requests, as a recording has them and as they were."""

    batches: tuple[Batch, ...]
    requests: tuple[Request, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def times_of(self, one: Request) -> tuple[int, int, int]:
        """When it was first in a batch, and had its first and last token."""
        first = self.batches[one.reads[-1][0]].update
        return self.batches[one.reads[0][0]].begin, first, max(self.batches[one.last].update, first)

    def parts_of(self, one: Request) -> dict[str, int]:
        """What each tick from its arrival to its first token is."""
        scheduled, first, _ = self.times_of(one)
        queued = one.queued if one.arrival <= one.queued <= scheduled else one.arrival
        ticks = dict.fromkeys(PARTS, 0)
        ticks["front_end"] = len(range(one.arrival, queued))
        ticks["queue"] = len(range(queued, scheduled))
        owner: dict[int, int] = {}  # of a tick, the batch that has it
        waiting: set[int] = set()
        reached = scheduled
        for place, _ in one.reads:
            batch = self.batches[place]
            until = min(batch.update, first)
            if until == first and max(batch.begin, reached) < batch.sampled <= first:
                until = batch.sampled
            waiting |= {tick for tick in range(reached, first) if tick < batch.begin}
            for tick in range(max(batch.begin, reached), until):
                owner[tick] = place
            reached = max(reached, until)
            if until == batch.sampled and batch.update >= first:
                ticks["output"] = first - until
        free = first - scheduled - len(owner) - ticks["output"]
        for place, tokens in one.reads:
            took = sum(1 for of in owner.values() if of == place)
            own = took * min(tokens, self.batches[place].tokens) // self.batches[place].tokens
            ticks["own"] += own
            ticks["shared"] += took - own
        ticks["preempted"] = min(max(one.preempted, 0), free)
        ticks["between"] = free - ticks["preempted"]
        return ticks

    def state_of(self, one: Request) -> str:
        """What it is good for."""
        scheduled, first, _ = self.times_of(one)
        if one.finish == "":
            return "cut"
        if one.finish in ("abort", "error", "other"):
            return "aborted" if one.finish == "abort" else "failed"
        if one.tokens <= 0:
            return "tokenless"
        return "whole" if 0 < one.arrival <= scheduled < first else "cut"

    def bundle(self) -> Bundle:
        """The tables of it."""
        frames = {
            "engine_requests": pd.DataFrame([self._request(n) for n in range(len(self.requests))]),
            "request_steps": pd.DataFrame([row for n in range(len(self.requests)) for row in
                                           self._runs(n)]),
            "engine": pd.DataFrame([
                {"iteration": FIRST_ITERATION + n, "key": 100 + n, "schedule_ns": b.begin,
                 "update_ns": b.update, "scheduled_tokens": b.tokens, "limit": b.limit,
                 "output_requests": len(self.requests), **_BATCH}
                for n, b in enumerate(self.batches)
            ]),
            "steps": pd.DataFrame([
                {"key": 100 + n, "start_ns": b.begin, "end_ns": b.sampled}
                for n, b in enumerate(self.batches) if b.sampled
            ], columns=["key", "start_ns", "end_ns"]),
        }  # fmt: skip
        frame: Callable[..., pd.DataFrame] = lambda name, rank, columns=None: (  # noqa: E731
            frames[name] if columns is None else frames[name][columns]
        )
        meta = SimpleNamespace(tables=["engine_requests-rank0.parquet"], facts=dict(self.facts))
        return cast(Bundle, SimpleNamespace(frame=frame, meta=meta))

    def _request(self, number: int) -> dict[str, Any]:
        one = self.requests[number]
        scheduled, first, last = self.times_of(one)
        return {"request": number, "arrival_ns": one.arrival, "queued_ns": one.queued,
                "scheduled_ns": scheduled, "first_token_ns": first, "last_token_ns": last,
                "first_preempted_ns": one.preempted, "output_tokens": one.tokens,
                "finish": one.finish, "prompt_tokens": sum(n for _, n in one.reads),
                "cached_tokens": 0, "preemptions": int(one.preempted > 0)}  # fmt: skip

    def _runs(self, number: int) -> list[dict[str, int]]:
        one = self.requests[number]
        reads = [{"request": number, "first": FIRST_ITERATION + place, "last": FIRST_ITERATION +
                  place, "read_tokens": tokens, "output_tokens": 0}
                 for place, tokens in one.reads]  # fmt: skip
        reads[-1]["output_tokens"] = 1
        after = one.reads[-1][0] + 1
        if one.last < after:
            return reads
        decoding = {"request": number, "first": FIRST_ITERATION + after, "last": FIRST_ITERATION +
                    one.last, "read_tokens": 0, "output_tokens": one.last - after + 1}  # fmt: skip
        return [*reads, decoding]


@st.composite
def served(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Served:
    """Some batches, which may overlap, and some requests."""
    batches: list[Batch] = []
    begin = update = draw(st.integers(30, 60))
    for _ in range(draw(st.integers(2, 7))):
        begin = max(begin, update + draw(st.integers(-6, 9)))
        update = max(update, begin) + draw(st.integers(1, 25))
        sampled = draw(st.one_of(st.just(0), st.integers(begin + 1, update)))
        limit = draw(st.sampled_from(["none", "kv", "sequences", "", "never heard of"]))
        batches.append(Batch(begin, update, sampled, draw(st.integers(1, 12)), limit))
    return Served(tuple(batches), tuple(draw(st.lists(_requests(batches), min_size=1, max_size=9))))


@st.composite
def _requests(draw: Callable[[st.SearchStrategy[Any]], Any], batches: Sequence[Batch]) -> Request:
    numbers = range(len(batches))
    places = sorted(draw(st.sets(st.sampled_from(numbers), min_size=1, max_size=4)))
    arrival = draw(st.integers(1, batches[places[0]].begin))
    return Request(
        arrival,
        queued=draw(st.integers(0, batches[places[0]].begin + 3)),
        reads=tuple((place, draw(st.integers(1, 14))) for place in places),
        last=draw(st.integers(places[-1], len(batches) - 1)),
        tokens=draw(st.sampled_from([0, 1, 1, 2, 5])),
        preempted=draw(st.sampled_from([0, 0, 3, 400])),
        finish=draw(st.sampled_from(["stop", "stop", "stop", "length", "abort", "error", ""])),
    )
