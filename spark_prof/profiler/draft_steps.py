"""Runs in the process of vLLM's scheduler: chooses the drafts of each step, and times the steps.

A step's time is from the result before it to its own, as the scheduler takes them in: all that a
step costs is in it, the drafter, the host and the scheduler, too. How many drafts are made is read
by vLLM's scheduler from a table by batch size, `num_speculative_tokens_per_batch_size`; here the
whole table is set to one number before each step. Standard library alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

ENVIRONMENT = "SPARK_PROF_DRAFTS"
"""Set where an engine shall have a `StepLog`."""
UTILITY = "spark_prof_drafts"
"""The method of the engine's core, which vLLM's client can call by its name."""

_TABLE = "dynamic_sd_lookup"
_MOST_STEPS = 200_000


class StepLog:
    """The steps of one scheduler since the last plan."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._schedule = scheduler.schedule
        self._update = scheduler.update_from_output
        self._most = int(getattr(scheduler, "num_spec_tokens", 0) or 0)
        self._blocks: list[tuple[int, int]] = []
        self._plan: list[int] = []
        self._requests = 0
        self._drafts: int | None = None
        table = getattr(scheduler, _TABLE, None)
        self._original = None if table is None else list(table)
        self.clear()

    def install(self) -> None:
        """Takes the place of the scheduler's own methods."""
        self._scheduler.schedule = self.schedule
        self._scheduler.update_from_output = self.update

    def clear(self) -> None:
        """Forgets what was measured."""
        self._scheduled = self._finished = 0
        self._steps: list[list[int]] = []
        self._of: dict[str, list[Any]] = {}

    def start(
        self, blocks: Sequence[Sequence[int]], requests: int, drafts: int | None = None
    ) -> None:
        """Begins a plan of blocks, drafts and steps, in which so many requests decode.

        Without blocks each step has so many drafts, or, with None, what vLLM's own table says.
        """
        self.clear()
        self._drafts = drafts
        self._plan = [int(drafts) for drafts, steps in blocks for _ in range(int(steps))]
        self._requests = int(requests)

    def rows(self) -> list[Any]:
        """The steps and the requests since then, in the columns of `DraftStep`, `RequestDrafts`."""
        return [self._steps, [[row[0], row[1], row[2]] for row in self._of.values()]]

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """The scheduler's own, at the number of drafts of the plan."""
        self._choose()
        output = self._schedule(*arguments, **named)
        if self._plan and len(output.num_scheduled_tokens) == self._requests:
            self._scheduled += not output.scheduled_new_reqs
        return output

    def _choose(self) -> None:
        table = getattr(self._scheduler, _TABLE, None)
        if table is None or self._original is None:
            return
        drafts = self._drafts
        if self._plan:
            drafts = self._plan[min(self._scheduled, len(self._plan) - 1)]
        same = self._original if drafts is None else [min(drafts, self._most)] * len(table)
        table[:] = same

    def update(self, output: Any, result: Any, *arguments: Any, **named: Any) -> Any:
        """The scheduler's own, after the step was counted."""
        if output.num_scheduled_tokens and len(self._steps) < _MOST_STEPS:
            self._count(output, result)
        return self._update(output, result, *arguments, **named)

    def _count(self, output: Any, result: Any) -> None:
        at_ns = time.monotonic_ns()
        drafts, context, emitted, prefills = [], 0, 0, 0
        proposed = output.scheduled_spec_decode_tokens
        sampled, place = result.sampled_token_ids, result.req_id_to_index
        ended = bool(self._plan) and self._finished >= len(self._plan)
        for name, tokens in output.num_scheduled_tokens.items():
            request, at = self._scheduler.requests.get(name), place.get(name)
            if request is None or request.is_finished():
                continue
            width = len(proposed.get(name, ()))
            got = len(sampled[at]) if sampled and at is not None else 0
            if tokens != 1 + width or not request.num_output_tokens:
                prefills += 1
                continue
            drafts.append(width)
            emitted += got
            context += request.num_prompt_tokens + request.num_output_tokens
            if got:
                self._add(name, width, got - 1)
                if ended:
                    # It ends with the token that it is given now.
                    request.max_tokens = 1
        decode_requests = -1 if prefills else len(drafts)
        self._finished += decode_requests == self._requests
        self._steps.append(
            [at_ns, decode_requests, min(drafts, default=0), max(drafts, default=0), sum(drafts),
             emitted, context]
        )  # fmt: skip

    def _add(self, name: str, drafted: int, accepted: int) -> None:
        row = self._of.get(name)
        if row is None:
            row = self._of[name] = [0, [0] * self._most, [0] * self._most]
        row[0] += 1
        for at in range(min(drafted, self._most)):
            row[1][at] += 1
            row[2][at] += at < accepted


def install(scheduler: Any) -> None:
    """Gives a scheduler a log, and the engine's core a method that reaches it."""
    import importlib

    from spark_prof.profiler.vllm_names import ENGINE_CORE

    log = StepLog(scheduler)
    log.install()

    def reach(_: Any, action: str, blocks: Any = (), requests: Any = 0, drafts: Any = None) -> Any:
        if action == "start":
            log.start(blocks, requests, drafts)
            return None
        return log.rows()

    module, name = ENGINE_CORE
    setattr(getattr(importlib.import_module(module), name), UTILITY, reach)
