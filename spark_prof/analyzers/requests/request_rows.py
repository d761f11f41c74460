"""What a report says of the requests that the scheduler saw; times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass

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
