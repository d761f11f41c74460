"""Records when the scheduler begins each iteration and what its requests got out of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spark_prof.profiler.batch import shared_batch
from spark_prof.profiler.drafts import DraftRecording
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.process import Process
from spark_prof.profiler.ranges import wrap_method
from spark_prof.profiler.request_log import ChosenBatch, RequestLog, SchedulerLoad, log_requests
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunks import ENGINE_DTYPE, REQUEST_DTYPE, REQUEST_STEP_DTYPE, array_name

_ROWS_PER_PIECE = 512
_OPEN_AT_MOST = 64


class EngineRecording:
    """One recording of one vLLM scheduler, which lives in the engine core's process."""

    def __init__(self, scheduler: Any, settings: Settings, process: Process) -> None:
        self._scheduler = scheduler
        self.process = process
        self.fence = Fence(process.log, settings.faults)
        self._open: dict[int, tuple[int, int, int, ChosenBatch | None]] = {}
        self._rows: list[tuple[int, ...]] = []
        self._drafts = DraftRecording()
        self._requests: RequestLog | None = None
        self._piece = self._number = self._rows_before = 0
        self._finished = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wraps the scheduler's two methods on the object."""
        if self.fence.call("counts", self.process.begin) is False:
            self._finished = True
            return
        self._requests = self.fence.call("requests", log_requests, self._scheduler)
        facts = self._requests and self.fence.call("requests", self._requests.load.facts)
        self.fence.call("facts", self.process.write_facts, {"scheduler": facts or {}})
        if self._requests is not None:
            self.fence.call("requests", self._requests.begin)
        self._undo = [
            wrap_method(self._scheduler, "add_request", self._around_add),
            wrap_method(self._scheduler, "schedule", self._around_schedule),
            wrap_method(self._scheduler, "update_from_output", self._around_update),
        ]

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._finished

    @property
    def failed(self) -> bool:
        """Whether iterations cannot be written any more, and would only grow in memory."""
        return "flush" in self.fence.failed

    def flush_when_quiet(self) -> None:
        """Writes the finished iterations if none has come since the last call.

        A process that is killed then has lost nothing but a burst that was still going on.
        """
        if "requests" in self.fence.failed:
            self._requests = None  # it would hold on to the engine's requests
        if self._rows_kept == self._rows_before:
            self.fence.call("flush", self.flush)
        self._rows_before = self._rows_kept

    def flush(self) -> None:
        """Writes the finished iterations as one piece; callable from any thread."""
        self._drafts.flush(self.process)
        rows, self._rows = self._rows, []
        tables: list[tuple[str, np.dtype[Any], list[tuple[int, ...]]]]
        tables = [("engine", ENGINE_DTYPE, rows)]
        if (log := self._requests) is not None:
            requests, steps = log.take()
            tables.append(("engine_requests", REQUEST_DTYPE, requests))
            tables.append(("request_steps", REQUEST_STEP_DTYPE, steps))
        if not any(table_rows for _, _, table_rows in tables):
            return
        piece, self._piece = self._piece, self._piece + 1
        for table, kind, table_rows in tables:
            if table_rows:
                name = array_name(self.process.name, table, piece)
                self.process.write(name, np.array(table_rows, dtype=kind))

    def abandon(self) -> None:
        """Takes the wraps off the scheduler and forgets what was not written."""
        self._finished = True
        self._rows.clear()
        self._drafts.clear()
        self._requests = None
        while self._undo:
            self._undo.pop()()

    def finish(self, why: str = "") -> None:
        """Ends the recording and takes the wraps off the scheduler.

        Args:
            why: what ended it, unless it was asked to end.
        """
        if self._finished:
            return
        self._finished = True
        while self._undo:
            self._undo.pop()()
        if self._requests is not None:
            self.fence.call("requests", self._requests.finish)
        self.fence.call("flush", self.flush)
        if self.failed:
            self.process.counter.fail()
        self.fence.call("progress", self.process.tell, {"finished": True, "ended": why})
        self.process.counter.finish()

    def _around_add(self, original: Any, request: Any, *rest: Any, **named: Any) -> Any:
        now, requests = time.time_ns(), self._requests
        result = original(request, *rest, **named)
        if requests is not None:
            self.fence.call("requests", requests.added, request, now)
        return result

    def _around_schedule(self, original: Any, *arguments: Any, **named: Any) -> Any:
        begin = time.time_ns()
        output = original(*arguments, **named)
        self.fence.call("schedule", self._scheduled, output, begin)
        return output

    def _around_update(self, original: Any, scheduler_output: Any, *rest: Any, **named: Any) -> Any:
        if getattr(scheduler_output, "scheduled_spec_decode_tokens", None):
            sampled = rest[0] if rest else named.get("model_runner_output")
            self.fence.call("drafts", self._drafted, scheduler_output, sampled)
        result = original(scheduler_output, *rest, **named)
        self.fence.call("update", self._updated, scheduler_output, result)
        return result

    def _scheduled(self, output: Any, begin: int) -> None:
        chosen, requests = None, self._requests  # another thread may take it away
        if requests is not None:
            chosen = self.fence.call("requests", requests.scheduled, output, begin)
        tokens = output.total_num_scheduled_tokens
        if tokens:
            self._open[id(output)] = (shared_batch(output).key, begin, tokens, chosen)
            if len(self._open) > _OPEN_AT_MOST:
                self._open.pop(next(iter(self._open)))

    def _drafted(self, output: Any, sampled: Any) -> None:
        scheduled = self._open.get(id(output))
        if scheduled is not None:
            log = self._requests
            number_of = None if log is None else log.number_of
            self._drafts.add(scheduled[0], self._scheduler, output, sampled, number_of)

    def _updated(self, output: Any, result: Any) -> None:
        scheduled = self._open.pop(id(output), None)
        if scheduled is None:
            return
        key, begin, tokens, chosen = scheduled
        items = [item for outputs in (result or {}).values() for item in outputs.outputs]
        got = {item.request_id: len(item.new_token_ids) for item in items if item.new_token_ids}
        unfinished = self._scheduler.get_num_unfinished_requests()
        now, number = time.time_ns(), self._number
        load = chosen.load if chosen is not None else SchedulerLoad()
        self._rows.append(
            (key, begin, now, tokens, sum(got.values()), len(got), unfinished, number, *load)
        )
        self._number += 1
        self.process.counter.end(self._number)
        requests = self._requests
        if requests is not None and chosen is not None:
            self.fence.call("requests", requests.updated, chosen, items, got, number, now)
        full = self._rows_kept >= _ROWS_PER_PIECE or self._drafts.full
        if full and not self.failed:
            self.fence.call("flush", self.flush)

    @property
    def _rows_kept(self) -> int:
        requests = self._requests
        return len(self._rows) + (requests.waiting_rows if requests is not None else 0)
