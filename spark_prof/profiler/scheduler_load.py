"""How full a vLLM scheduler is right after it chose a batch, and what kept more out of the batch.

All of it is read from the scheduler's own attributes, whose names differ between vLLM's versions:
what is absent stays unknown.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_prof.vocabulary import LIMITS

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
