"""The times of each request, from the scheduler's own record of its batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.traces.bundle import Bundle

PARTS = ("front_end", "queue", "preempted", "own", "shared", "between", "output")
"""What the time to a first token goes to, in this order. front_end: until the scheduler has the
request, tokenizing included. queue: until its first batch. preempted: it had lost its place in the
KV cache. own: its share, by tokens, of the batches that read its prompt. shared: the rest of these
batches. between: none of its batches ran. output: from the worker's tokens to the scheduler."""


@dataclass(frozen=True)
class Percentiles:
    """How one time is spread over requests."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class FirstTokenPart:
    """One part of the time to the first token.

    At each percentile, of the requests around it: the parts add up to the percentile.
    """

    name: str  # one of PARTS
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class LimitRow:
    """What bound so many of the scheduler's batches."""

    limit: str  # one of vocabulary.LIMITS
    batches: int
    share: float  # of the batches whose limit is known


@dataclass(frozen=True)
class RequestSummary:
    """All requests of a recording.

    Percentiles are of those that are whole: seen from their arrival to their end, with a token, and
    neither aborted nor failed.
    """

    requests: int  # all that the schedulers saw
    whole: int  # of these, those that the percentiles are of
    aborted: int  # by their client; also where the front end found a stop string
    failed: int  # that ended in an error
    cut: int  # the recording began or ended while they ran
    tokenless: int  # that ended without a token, such as of pooling
    prompt_tokens: int  # of all requests that had a first batch
    cached_tokens: int | None  # of these, found in the prefix cache; None where unknown
    output_tokens: int  # of all requests
    preemptions: int  # how often one lost its place in the KV cache
    ttft: Percentiles | None = None
    parts: tuple[FirstTokenPart, ...] = ()
    tpot: Percentiles | None = None  # each request's mean time of a token after the first
    itl: Percentiles | None = None  # between two batches that gave a request tokens
    limits: tuple[LimitRow, ...] = ()  # most batches first
    running: float | None = None  # requests with a place in the batch, mean over the batches
    most_running: int | None = None
    waiting: float | None = None  # requests without one
    most_waiting: int | None = None
    kv_used: float | None = None  # share of the KV cache that is in use, mean over the batches
    kv_most_used: float | None = None
    kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    prefix_caching: bool | None = None

    def part(self, name: str) -> FirstTokenPart | None:
        """One part of the first token's time; None where it takes none."""
        return next((part for part in self.parts if part.name == name), None)

    def limited(self, limit: str) -> float:
        """The share of the batches that this limit bound."""
        return sum(row.share for row in self.limits if row.limit == limit)


WHOLE, ABORTED, FAILED, CUT, TOKENLESS = "whole", "aborted", "failed", "cut", "tokenless"
_FAILURES = ("error", "other")
_MOST_ITERATIONS = 1 << 40


def schedulers_of(bundle: Bundle) -> list[int]:
    """The numbers of the schedulers whose requests are recorded; none in an older bundle."""
    begin = "engine_requests-rank"
    names = [name for name in bundle.meta.tables if name.startswith(begin)]
    return sorted(int(name.removeprefix(begin).removesuffix(".parquet")) for name in names)


def request_times(bundle: Bundle, scheduler: int, rank: int | None = None) -> pd.DataFrame:
    """A row a request of that scheduler, with its times in microseconds; NaN where unknown.

    Beside the columns of `engine_requests` it has `state` (whole, aborted, failed, cut or
    tokenless), `ttft_us`, each of PARTS as `NAME_us`, which add up to it, and `tpot_us`.

    Args:
        rank: a worker whose steps tell when tokens were sampled; None for none.
    """
    requests = bundle.frame("engine_requests", scheduler)
    engine = bundle.frame("engine", scheduler)
    batches = _Batches.of(engine, bundle.frame("steps", rank) if rank is not None else None)
    runs = bundle.frame("request_steps", scheduler)
    reads = runs[(runs["read_tokens"] > 0)].sort_values(["request", "first"], kind="stable")
    reads_of: dict[int, list[tuple[int, int]]] = {}
    columns = (reads[name].tolist() for name in ("request", "first", "read_tokens"))
    for number, first, tokens in zip(*columns, strict=True):
        reads_of.setdefault(number, []).append((batches.find(first), tokens))
    parts = {name: np.full(len(requests), np.nan) for name in PARTS}
    lost = np.zeros(len(requests), bool)
    rows: Iterable[Any] = requests.itertuples(index=False)
    for place, row in enumerate(rows):
        if row.first_token_ns <= 0 or row.scheduled_ns <= 0:
            continue
        parts_ns = _parts_of(row, reads_of.get(row.request, ()), batches)
        lost[place] = parts_ns is None
        for name, ns in zip(PARTS, parts_ns or (), strict=bool(parts_ns)):
            parts[name][place] = ns / 1e3
    begins, ends = (requests[f"{name}_token_ns"].to_numpy(np.int64) for name in ("first", "last"))
    state = _states(requests, lost)
    whole = state == WHOLE
    later_tokens = requests["output_tokens"].to_numpy(np.int64) - 1
    tpot = np.where(
        whole & (later_tokens > 0), (ends - begins) / 1e3 / np.maximum(later_tokens, 1), np.nan
    )
    of_parts = {f"{name}_us": values for name, values in parts.items()}
    ttft = np.where(whole, sum(parts.values()), np.nan)
    return requests.assign(state=state, ttft_us=ttft, tpot_us=tpot, **of_parts)


def token_gaps(bundle: Bundle, scheduler: int, requests: pd.DataFrame) -> np.ndarray:
    """Microseconds between two batches that gave one of these requests tokens, all together."""
    engine = bundle.frame("engine", scheduler, ["iteration", "update_ns", "output_requests"])
    batches = _Batches.of(engine)
    runs = bundle.frame("request_steps", scheduler)
    runs = runs[(runs["output_tokens"] > 0) & runs["request"].isin(requests["request"])]
    runs = runs.sort_values(["request", "first"], kind="stable")
    first, last = (runs[name].to_numpy(np.int64) for name in ("first", "last"))
    lengths = np.where(batches.holds(first) & batches.holds(last), last - first + 1, 0)
    lengths = np.maximum(lengths, 0)
    if lengths.sum() > engine["output_requests"].sum():
        return np.empty(0)  # damage: a batch gives a request tokens once
    ends = np.cumsum(lengths)
    iterations = np.arange(ends[-1] if len(ends) else 0) + np.repeat(
        first - ends + lengths, lengths
    )
    owners = np.repeat(runs["request"].to_numpy(np.int64), lengths)
    times = batches.updated(iterations)
    timed = times > 0
    gaps = np.diff(times[timed]) / 1e3
    return np.asarray(gaps[np.diff(owners[timed]) == 0])


def _states(requests: pd.DataFrame, lost: np.ndarray) -> np.ndarray:
    """The state of each request: whole, aborted, failed, cut or tokenless."""
    finish = requests["finish"].astype(str).to_numpy()
    arrived, scheduled, first, last, tokens = (
        requests[name].to_numpy(np.int64)
        for name in (
            "arrival_ns",
            "scheduled_ns",
            "first_token_ns",
            "last_token_ns",
            "output_tokens",
        )
    )
    ordered = (arrived > 0) & (scheduled >= arrived) & (first > scheduled) & (last >= first)
    conditions = [
        finish == "", finish == "abort", np.isin(finish, _FAILURES), tokens <= 0, ~ordered | lost,
    ]  # fmt: skip
    return np.select(conditions, [CUT, ABORTED, FAILED, TOKENLESS, CUT], WHOLE)


@dataclass(frozen=True)
class _Batches:
    """The scheduler's batches by their iteration."""

    lowest: int
    place: Int64s  # of each iteration in the table, -1 where it is not there
    begin: Int64s
    update: Int64s
    tokens: Int64s
    sampled: Int64s  # when the worker had handed back the tokens, 0 where unknown

    @classmethod
    def of(cls, engine: pd.DataFrame, steps: pd.DataFrame | None = None) -> _Batches:
        """The batches of the rows that have an iteration; an older bundle has none."""
        engine = engine[engine["iteration"] >= 0].drop_duplicates("iteration")
        numbers = engine["iteration"].to_numpy(np.int64)
        lowest = int(numbers.min()) if len(numbers) else 0
        span = int(numbers.max()) - lowest + 1 if len(numbers) else 0
        if span > max(64 * len(numbers), 1 << 20):  # damage: no such table would fit into memory
            numbers, span, engine = numbers[:0], 0, engine[:0]
        place = np.full(span, -1, np.int64)
        place[numbers - lowest] = np.arange(len(numbers))
        nothing = np.zeros(len(engine), np.int64)
        begin, update, tokens = (
            engine[name].to_numpy(np.int64) if name in engine else nothing
            for name in ("schedule_ns", "update_ns", "scheduled_tokens")
        )
        sampled = nothing
        if steps is not None and len(steps):
            sampled = _sampled(engine, steps, begin, update)
        return cls(lowest, place, begin, update, tokens, sampled)

    def holds(self, iterations: Int64s) -> np.ndarray:
        """Which iterations lie among them."""
        offset = iterations - self.lowest
        return np.asarray((offset >= 0) & (offset < len(self.place)))

    def find(self, iteration: int) -> int:
        """The place of one; -1 where it is not there."""
        offset = iteration - self.lowest
        return int(self.place[offset]) if 0 <= offset < len(self.place) else -1

    def updated(self, iterations: Int64s) -> Int64s:
        """When the scheduler had taken each in, 0 where unknown."""
        places = self.place[iterations - self.lowest]
        return np.where(places >= 0, np.append(self.update, 0)[places], 0).astype(np.int64)


def _sampled(engine: pd.DataFrame, steps: pd.DataFrame, begin: Int64s, update: Int64s) -> Int64s:
    """When the worker was done with each batch: of its steps the one that lies inside of it."""
    rows = pd.DataFrame({"key": engine["key"].to_numpy(), "place": np.arange(len(engine))})
    pairs = rows.merge(steps[["key", "start_ns", "end_ns"]], on="key")
    place = pairs["place"].to_numpy(np.int64)
    inside = (pairs["start_ns"].to_numpy(np.int64) >= begin[place]) & (
        pairs["end_ns"].to_numpy(np.int64) <= update[place]
    )
    sampled = np.zeros(len(engine), np.int64)
    sampled[place[inside]] = pairs["end_ns"].to_numpy(np.int64)[inside]
    return sampled


def _parts_of(
    row: Any, reads: Sequence[tuple[int, int]], batches: _Batches
) -> tuple[int, ...] | None:
    """The PARTS of one request in ns; None where a batch that read its prompt is not there.

    Args:
        row: of `engine_requests`.
        reads: the place of each batch that read its prompt, -1 where it is not there, and how many
            tokens of it.
    """
    arrived, scheduled, first = row.arrival_ns, row.scheduled_ns, row.first_token_ns
    queued = row.queued_ns if arrived <= row.queued_ns <= scheduled else arrived
    read_ns = shared = gaps = output = 0
    end, read = scheduled, False
    for place, tokens in reads:
        if place < 0:
            return None
        if batches.begin[place] >= first:
            break
        read = True
        begin = max(int(batches.begin[place]), end)
        until = min(int(batches.update[place]), first)
        gaps += max(begin - end, 0)
        if until == first and begin < int(batches.sampled[place]) <= until:
            until = int(batches.sampled[place])
            output = first - until
        took = max(until - begin, 0)
        part = took * min(tokens, int(batches.tokens[place])) // max(int(batches.tokens[place]), 1)
        read_ns, shared = read_ns + part, shared + took - part
        end = max(end, until)
    if not read:
        return None
    gaps += max(first - output - end, 0)
    preempted = min(max(row.first_preempted_ns, 0), gaps)
    return (
        queued - arrived, scheduled - queued, preempted, read_ns, shared, gaps - preempted, output,
    )  # fmt: skip
