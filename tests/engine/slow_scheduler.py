"""A scheduler with a slow function of Python in it, for vLLM's option scheduler_cls."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

SLOW_SECONDS = 0.02


def slow_policy() -> int:
    """Computes nothing of use for `SLOW_SECONDS`."""
    until, turns = time.perf_counter() + SLOW_SECONDS, 0
    while time.perf_counter() < until:
        turns += 1
    return turns


class SlowScheduler(Scheduler):
    """Thinks for too long after it has chosen a batch."""

    def _update_after_schedule(self, *arguments: Any, **named: Any) -> None:
        slow_policy()
        super()._update_after_schedule(*arguments, **named)
