"""A scheduler made by hand: requests come, read in chunks, are preempted, speculate and end.

It has what spark-prof reads of vLLM's, and writes down what happened, time by time, as the truth.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from .fakes import Cached

_WAITING, _RUNNING, _PREEMPTED = (
    SimpleNamespace(name=name) for name in ("WAITING", "RUNNING", "PREEMPTED")
)


class Clock:
    """A clock that goes on by hand, in ns since the epoch; each look takes a nanosecond."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


@dataclass(eq=False)
class Request:
    """A vLLM Request as far as it is read, and what truly happened to it."""

    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    wanted: int
    cached: int = 0
    status: Any = field(default_factory=lambda: _WAITING)
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    is_prefill_chunk: bool = False
    ends_as: str = "length"
    chunks: list[tuple[int, int]] = field(default_factory=list)  # batch, tokens read
    tokens: list[tuple[int, int]] = field(default_factory=list)  # batch, tokens got
    scheduled: int = 0
    away: list[list[int]] = field(default_factory=list)  # preempted, placed again

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class Queue(deque[Request]):
    """The queue of those that wait."""

    def peek_request(self) -> Request:
        return self[0]


class FakeScheduler:
    """Chooses batches by a token budget and a most of running requests; preempts at random."""

    def __init__(self, clock: Clock, seed: int, *, budget: int = 64, most: int = 4) -> None:
        self.clock, self.chance = clock, random.Random(seed)
        self.max_num_scheduled_tokens, self.max_num_running_reqs = budget, most
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = Queue()
        self.finished: set[str] = set()
        self.times: list[tuple[int, int, int]] = []  # of each batch: chosen, taken in, tokens
        self.limits: list[str] = []
        self.every: list[Request] = []
        free = SimpleNamespace(num_gpu_blocks=101, get_num_free_blocks=lambda: 100)
        self.kv_cache_manager = SimpleNamespace(block_pool=free, enable_caching=True)
        self.block_size = 16

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.every.append(request)

    def abort(self, request: Request) -> None:
        request.status = SimpleNamespace(name="FINISHED_ABORTED")
        request.ends_as = "abort"
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        del self.requests[request.request_id]
        self.finished.add(request.request_id)

    def schedule(self) -> Any:
        number, budget = len(self.times), self.max_num_scheduled_tokens
        begin = self.clock.now  # spark-prof has looked right before
        self.clock.now += self.chance.randrange(20, 90)
        preempted, tokens, new, again, cached = set(), {}, {}, set(), {}
        if len(self.running) > 1 and self.chance.random() < 0.15:
            request = self.running.pop()
            request.status, request.num_computed_tokens = _PREEMPTED, 0
            request.num_preemptions += 1
            request.away.append([begin])
            preempted.add(request.request_id)
            self.waiting.appendleft(request)
        reads = set()
        for request in [r for r in self.running if budget]:
            cached[request.request_id] = request.num_computed_tokens
            budget -= self._take(request, budget, tokens, reads)
        while not preempted and self.waiting and budget:
            if len(self.running) >= self.max_num_running_reqs:
                break
            request = self.waiting.popleft()
            self.running.append(request)
            if request.status is _PREEMPTED:
                again.add(request.request_id)
                cached[request.request_id] = 0
                request.away[-1].append(begin)
            else:
                request.scheduled, request.num_computed_tokens = begin, request.cached
                new[request.request_id] = request.cached
            request.status = _RUNNING
            budget -= self._take(request, budget, tokens, reads)
        rest = SimpleNamespace(**vars(Cached(cached)), resumed_req_ids=again)
        rest.is_context_phase = lambda name: self.requests[name].num_output_tokens == 0
        self.limits.append(self._limit(preempted, budget, tokens))
        finished, self.finished = self.finished, set()
        self.times.append((begin, 0, sum(tokens.values())))
        return SimpleNamespace(
            number=number, reads=reads, num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()), preempted_req_ids=preempted,
            finished_req_ids=finished, scheduled_cached_reqs=rest,
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, num_computed_tokens=count, prompt_token_ids=None)
                for name, count in new.items()
            ],
        )  # fmt: skip

    def _take(self, request: Request, budget: int, tokens: dict[str, int], reads: set[str]) -> int:
        left = request.num_tokens - request.num_computed_tokens
        took = min(max(left, 1), budget)
        if left > 1 or not request.num_output_tokens:
            reads.add(request.request_id)
            request.chunks.append((len(self.times), took))
        tokens[request.request_id] = took
        request.num_computed_tokens += took
        request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        return took

    def _limit(self, preempted: set[str], budget: int, tokens: dict[str, int]) -> str:
        more = any(r.is_prefill_chunk for r in self.running) or len(tokens) < len(self.running)
        if preempted:
            return "kv"
        if not budget and (self.waiting or more):
            return "tokens"
        if not self.waiting:
            return "none"
        return "sequences"

    def update_from_output(self, output: Any, got: Callable[[], int]) -> Any:
        self.clock.now += self.chance.randrange(200, 900)
        items = []
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None or request.is_prefill_chunk:
                continue
            count = 1 if name in output.reads else got()
            count = min(count, request.wanted - request.num_output_tokens)
            request.num_output_tokens += count
            request.num_computed_tokens = request.num_tokens - 1
            request.tokens.append((output.number, count))
            done = request.num_output_tokens >= request.wanted
            if done:
                request.status = SimpleNamespace(name="FINISHED_LENGTH_CAPPED")
                self.running.remove(request)
                del self.requests[name]
                self.finished.add(name)
            items.append(
                SimpleNamespace(
                    request_id=name, new_token_ids=[7] * count,
                    finish_reason=SimpleNamespace(name="LENGTH") if done else None,
                )
            )  # fmt: skip
        begin, _, tokens = self.times[output.number]
        # spark-prof looks at the clock as the next thing.
        self.times[output.number] = (begin, self.clock.now + 1, tokens)
        return {0: SimpleNamespace(outputs=items)}

    def get_num_unfinished_requests(self) -> int:
        return len(self.requests)
