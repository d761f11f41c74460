"""Writes down the way of every request through a vLLM scheduler, without its id or its texts.

A request has one row when it is done, and a row for each batch in which it read its prompt and for
each unbroken run of batches in which it got tokens. In a batch like the one before nothing is
written: all its requests are still in the same run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_prof.vocabulary import FINISHES, LIMITS

UNKNOWN, NOTHING, TOKENS, SEQUENCES, KV, OTHER = range(len(LIMITS))

_QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")
_READY = ("WAITING", "PREEMPTED")  # statuses of a request that waits for nothing but its place


class SchedulerLoad(NamedTuple):
    """Requests and KV blocks at one batch; the columns of the `engine` table."""

    running: int = -1
    waiting: int = -1
    free_blocks: int = -1
    limit: int = UNKNOWN


class LoadReader:
    """Reads the load of one scheduler; what does not change it looks up once."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._queues = [name for name in _QUEUES if hasattr(scheduler, name)]
        cache = getattr(scheduler, "kv_cache_manager", None)
        pool = getattr(cache, "block_pool", None)
        self._free = getattr(pool, "get_num_free_blocks", None)
        self._spare = _positive(getattr(cache, "watermark_blocks", None))
        self._blocks = _positive(getattr(pool, "num_gpu_blocks", None))
        settings = getattr(scheduler, "scheduler_config", None)
        self._most_tokens = _positive(
            getattr(scheduler, "max_num_scheduled_tokens", None)
            or getattr(settings, "max_num_batched_tokens", None)
        )
        self._most_running = _positive(
            getattr(scheduler, "max_num_running_reqs", None)
            or getattr(settings, "max_num_seqs", None)
        )
        groups = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_groups", ())
        self._groups = max(len(groups), 1)
        self._block_size = _positive(getattr(scheduler, "block_size", None))
        self._prefixes = getattr(cache, "enable_caching", None)

    def facts(self) -> dict[str, int | bool]:
        """The scheduler's limits, as far as they are known."""
        limits = {
            "max_num_batched_tokens": self._most_tokens,
            "max_num_seqs": self._most_running,
            # One block is vLLM's null block, which no request gets.
            "kv_blocks": self._blocks and self._blocks - 1,
            "kv_block_size": self._block_size,
        }
        facts: dict[str, int | bool] = {name: value for name, value in limits.items() if value}
        if isinstance(self._prefixes, bool):
            facts["prefix_caching"] = self._prefixes
        return facts

    def read(self, output: Any, reading: int) -> SchedulerLoad:
        """The load after a batch was chosen.

        Args:
            output: the SchedulerOutput.
            reading: requests that have begun to read their prompt and are not through.
        """
        scheduler = self._scheduler
        running = len(scheduler.running)
        waiting = sum(len(getattr(scheduler, name)) for name in self._queues)
        free = int(self._free()) if self._free is not None else -1
        limit = self._limit(output, running, waiting, free, reading) if self._queues else UNKNOWN
        return SchedulerLoad(running, waiting, free, limit)

    def _limit(self, output: Any, running: int, waiting: int, free: int, reading: int) -> int:
        if getattr(output, "preempted_req_ids", None):
            return KV
        left_out = running - len(output.num_scheduled_tokens)
        spent = self._most_tokens and output.total_num_scheduled_tokens >= self._most_tokens
        if spent and (waiting or reading or left_out > 0):
            return TOKENS
        if not waiting:
            return NOTHING
        if self._most_running and running >= self._most_running:
            return SEQUENCES
        return KV if self._lacks_blocks(free) else OTHER

    def _lacks_blocks(self, free: int) -> bool:
        """Whether the next request waits for nothing but blocks, of which too few are free."""
        if free < 0 or not self._block_size:
            return False
        queue = self._scheduler.waiting
        peek = getattr(queue, "peek_request", None)
        if peek is None or not len(queue):
            return False
        request = peek()
        if getattr(request.status, "name", "") not in _READY:
            return False
        needed = -(-request.num_tokens // self._block_size) * self._groups
        return bool(needed > free - self._spare)


def _positive(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


_REASONS = {name: code for code, name in enumerate(FINISHES) if name}
_OTHER = _REASONS["other"]
_STATUSES = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "abort",
    "FINISHED_IGNORED": "length",
    "FINISHED_ERROR": "error",
    "FINISHED_REPETITION": "repetition",
}


@dataclass(slots=True)
class _OpenRequest:
    """One request of the scheduler that is not done; times in ns since the epoch."""

    number: int
    request: Any  # vLLM's Request
    queued_ns: int = 0
    scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    cached: int = -1
    before: bool = False  # whether it had begun before the recording
    preempted_at: int = 0  # when it lost its place in the KV cache; 0 while it has one
    preempted_ns: int = 0
    first_preempted_ns: int = 0
    run_from: int = -1  # the first iteration of its run; -1 outside of one
    run_tokens: int = 0  # tokens that it had before


class ChosenBatch(NamedTuple):
    """What is known of a batch when it is chosen."""

    load: SchedulerLoad
    reading: dict[str, int]  # tokens by id of the requests that read in it


class RequestLog:
    """Follows the requests of one scheduler; called in the thread of the engine."""

    def __init__(self, scheduler: Any) -> None:
        self.load = LoadReader(scheduler)
        self._scheduler = scheduler
        self._entries: dict[str, _OpenRequest] = {}
        self._count = 0
        self._reading: set[str] = set()  # requests in the batch that have not read their prompt
        self._generating: dict[str, _OpenRequest] = {}  # those whose run goes on
        self._last = -1  # the last iteration
        self._last_ns = 0
        self._requests: list[tuple[int, ...]] = []
        self._steps: list[tuple[int, ...]] = []

    def begin(self) -> None:
        """Follows the requests that the scheduler has already."""
        for name, request in list(getattr(self._scheduler, "requests", {}).items()):
            entry = self._enter(name, request, 0)
            status = getattr(request.status, "name", "")
            entry.before = status in ("RUNNING", "PREEMPTED") or request.num_output_tokens > 0
            if status == "RUNNING" and not request.num_output_tokens:
                self._reading.add(name)

    def added(self, request: Any, now: int) -> None:
        """Follows a request that came at `now`."""
        if request.request_id not in self._entries:
            self._enter(request.request_id, request, now)

    def scheduled(self, output: Any, begin: int) -> ChosenBatch:
        """Follows a batch that was chosen from `begin` on."""
        for name in getattr(output, "finished_req_ids", None) or ():
            self._end_request(name, self._last_ns or begin)
        for name in getattr(output, "preempted_req_ids", None) or ():
            self._preempted(name, begin)
        for new in output.scheduled_new_reqs:
            self._placed(new.req_id, begin, new.num_computed_tokens)
        for name in _resumed(output.scheduled_cached_reqs):
            self._placed(name, begin, None)
        tokens = output.num_scheduled_tokens
        reading: dict[str, int] = {}
        if self._reading:
            reading = {name: tokens[name] for name in self._reading if name in tokens}
            for name in reading:
                if not _reads_on(self._entries[name].request):
                    self._reading.discard(name)
        return ChosenBatch(self.load.read(output, len(self._reading)), reading)

    def updated(
        self, chosen: ChosenBatch, items: list[Any], got: dict[str, int], iteration: int, now: int
    ) -> None:
        """Follows what the requests of a batch got.

        Args:
            items: the EngineCoreOutput of each request.
            got: how many tokens each got that got any, by its id.
            iteration: number of the batch.
            now: when the scheduler had taken them in, in ns since the epoch.
        """
        reading, generating = chosen.reading, self._generating
        if reading or got.keys() != generating.keys():
            for name in [n for n in generating if n not in got or n in reading]:
                self._end_run(generating.pop(name), self._last, self._last_ns)
            for name, tokens in reading.items():
                self._read(name, tokens, got.get(name, 0), iteration, now)
            for name, count in got.items():
                if name not in generating and name not in reading:
                    self._begin_run(name, count, iteration, now)
        self._last, self._last_ns = iteration, now
        for item in items:
            if item.finish_reason is not None:
                self._end_request(item.request_id, now, item.finish_reason)

    def take(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """The finished rows of both tables, which are then forgotten here."""
        requests, self._requests = self._requests, []
        steps, self._steps = self._steps, []
        return requests, steps

    def finish(self) -> None:
        """Writes what there is of the requests that are not done."""
        for name in list(self._entries):
            self._end_request(name, 0, "")

    def number_of(self, name: str) -> int:
        """The number of a request that lives, in both tables; -1 for another."""
        entry = self._find(name)
        return -1 if entry is None else entry.number

    @property
    def waiting_rows(self) -> int:
        """How many rows `take` would give."""
        return len(self._requests) + len(self._steps)

    def _enter(self, name: str, request: Any, now: int) -> _OpenRequest:
        entry = self._entries[name] = _OpenRequest(self._count, request, queued_ns=now)
        self._count += 1
        return entry

    def _find(self, name: str) -> _OpenRequest | None:
        """The entry of a request, also of one that came while the recording began."""
        entry = self._entries.get(name)
        if entry is None and (request := self._scheduler.requests.get(name)) is not None:
            entry = self._enter(name, request, 0)
            entry.before = True
        return entry

    def _placed(self, name: str, begin: int, computed: int | None) -> None:
        """Follows a request that gets a place in the batch, the first time or again."""
        entry = self._find(name)
        if entry is None:
            return
        self._reading.add(name)
        if entry.preempted_at:
            waited = begin - entry.preempted_at
            entry.preempted_at = 0
            entry.preempted_ns += waited
            if not entry.first_token_ns:
                entry.first_preempted_ns += waited
        elif not entry.scheduled_ns and not entry.before and computed is not None:
            entry.scheduled_ns, entry.cached = begin, computed

    def _preempted(self, name: str, begin: int) -> None:
        entry = self._find(name)
        if entry is not None:
            entry.preempted_at = begin
            self._reading.discard(name)

    def _read(self, name: str, tokens: int, got: int, iteration: int, now: int) -> None:
        entry = self._find(name)
        if entry is None:
            return
        self._steps.append((entry.number, iteration, iteration, tokens, got))
        if got:
            self._token(entry, got, now)
            entry.last_token_ns = now

    def _begin_run(self, name: str, count: int, iteration: int, now: int) -> None:
        entry = self._find(name)
        if entry is None:
            return
        self._token(entry, count, now)
        entry.run_from = iteration
        entry.run_tokens = entry.request.num_output_tokens - count
        self._generating[name] = entry

    def _token(self, entry: _OpenRequest, count: int, now: int) -> None:
        if not entry.first_token_ns and entry.request.num_output_tokens <= count:
            entry.first_token_ns = now

    def _end_run(self, entry: _OpenRequest, last: int, now: int) -> None:
        tokens = entry.request.num_output_tokens - entry.run_tokens
        self._steps.append((entry.number, entry.run_from, last, 0, tokens))
        entry.run_from, entry.last_token_ns = -1, now

    def _end_request(self, name: str, end: int, reason: Any = None) -> None:
        """Writes the row of a request that is done, or of which no more will be known."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._reading.discard(name)
        if self._generating.pop(name, None) is not None:
            self._end_run(entry, self._last, self._last_ns)
        request = entry.request
        self._requests.append(
            (
                entry.number,
                _wall_ns(getattr(request, "arrival_time", None)),
                entry.queued_ns,
                entry.scheduled_ns,
                entry.first_token_ns,
                entry.last_token_ns,
                end,
                request.num_prompt_tokens,
                entry.cached,
                request.num_output_tokens,
                getattr(request, "num_preemptions", 0),
                entry.preempted_ns,
                entry.first_preempted_ns,
                _reason(request, reason),
            )
        )


def log_requests(scheduler: Any) -> RequestLog | None:
    """A log of that scheduler; None where it does not show its requests as vLLM's does."""
    attributes = ("requests", "running", "waiting")
    return RequestLog(scheduler) if all(hasattr(scheduler, name) for name in attributes) else None


def _resumed(cached: Any) -> Collection[str]:
    """Requests of a batch that get a place again after a preemption."""
    return getattr(cached, "resumed_req_ids", None) or ()


def _reads_on(request: Any) -> bool:
    """Whether a request has more to read after the batch that was just chosen."""
    return bool(request.is_prefill_chunk)


def _reason(request: Any, reason: Any) -> int:
    """The code of how a request ended, by what vLLM gave with its last token, or its status."""
    if reason == "":
        return 0
    if reason is None:
        name = _STATUSES.get(getattr(request.status, "name", ""), "")
    else:
        name = str(getattr(reason, "name", reason)).lower()
    return _REASONS.get(name, _OTHER)


def _wall_ns(seconds: object) -> int:
    """A time by the wall clock in ns since the epoch; 0 where it is none."""
    return int(seconds * 1e9) if isinstance(seconds, float) and seconds > 1e9 else 0
