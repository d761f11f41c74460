"""Runs a plan of blocks of steps in one vLLM worker, and measures how long each step took.

A step lasts from its own start to the start of the engine's next step. A start is the moment at
which the device comes to it: on a GPU an event on the stream of the worker, which is reached when
everything of the steps before is done. So the durations of consecutive steps add up to the time
that passed. Asynchronous scheduling calls a step while the one before still runs: then the
duration is what the GPU needed; where the GPU waits for the host, it is what the host needed. Both
are the time per token that a user sees, because each request of a decode step gets one token.

What the device alone needs shows where the host is ahead of it. So a plan may hold the device back
before each step, with a kernel that does nothing; the step then begins behind that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.profiler.batch import read_batch
from spark_prof.profiler.fence import Fence
from spark_prof.profiler.ranges import wrap_method
from spark_prof.swaps.swap_settings import SIDES


class HostMarks:
    """Marks on the host's clock, for engines that compute on the CPU: each is its time in ns."""

    def reset(self, count: int) -> None:
        """Does nothing: marks of the host need no preparation."""

    def mark(self) -> int:
        """Sets a mark."""
        return time.perf_counter_ns()

    def between(self, first: int, second: int) -> int:
        """The nanoseconds from one mark to a later one."""
        return second - first

    def reached(self, mark: int) -> None:
        """Returns at once: the host itself computes, so that the mark has been reached."""

    def hold(self, us: int) -> None:
        """Does nothing: there is no device to keep waiting."""


class EventMarks:
    """Marks as CUDA events on the current stream: the GPU reaches one when all before it is done.

    Events are kept and used again, numbered from 0. An event's resolution is about half a
    microsecond (CUDA Runtime API, cudaEventElapsedTime).
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._events: list[Any] = []
        self._used = 0

    def reset(self, count: int) -> None:
        """Forgets all marks and creates the events that are missing, outside of any step."""
        import torch

        self._used = 0
        with torch.cuda.device(self._device):
            for _ in range(count - len(self._events)):
                event = torch.cuda.Event(enable_timing=True)
                event.record()  # the CUDA event behind it is created by its first use
                self._events.append(event)

    def mark(self) -> int:
        """Records the next event; raises IndexError when there is none left."""
        number = self._used
        self._events[number].record()
        self._used = number + 1
        return number

    def between(self, first: int, second: int) -> int:
        """The nanoseconds from one mark to a later one; waits until the GPU has reached it."""
        begin, end = self._events[first], self._events[second]
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return round(milliseconds * 1e6)

    def reached(self, mark: int) -> bool:
        """Whether the GPU has come to a mark; waits for nothing."""
        is_reached: bool = self._events[mark].query()
        return is_reached

    def hold(self, us: int) -> None:
        """Keeps the current stream busy for about that long, with a kernel that does nothing."""
        import torch

        torch.cuda._sleep(us * _CYCLES_A_US)


_CYCLES_A_US = 2000
"""Of a GPU at 2 GHz. At a lower clock the device is held back for longer."""


Marks = HostMarks | EventMarks


def marks_for(worker: Any) -> Marks:
    """The marks of the device that this vLLM worker computes on."""
    device = getattr(worker, "device", None)
    return EventMarks(device) if getattr(device, "type", "cpu") == "cuda" else HostMarks()


MOST_STEPS = 100_000
"""Steps of one plan at most: each holds a CUDA event until its time is read."""

_OF_WORKER = "_spark_prof_clock"


_Place = tuple[int, str, int]
"""A place in the plan: the block's number, its side, and which step of the block it is."""


@dataclass(slots=True)
class _Begun:
    """A step of the plan that has begun: its first mark, its last one, and its batch."""

    place: _Place
    first: int
    requests: dict[str, int]
    counts: tuple[int, int, int]  # prefill tokens, decoding requests, context tokens
    last: int = -1
    end_epoch_ns: int = 0  # when the host began the next step, maybe one before the GPU did
    # Whether the device was still at the step before when the host had launched this one, so that
    # it did not wait; None where host and device are one.
    ahead: bool | None = None
    launched: int = -1  # a mark behind what the host had launched; only where the device is held


class StepClock:
    """The plan of one worker. It wraps `execute_model` on the object and waits for nothing there.

    A fault turns the clock off for good, with one line in the log; the engine goes on.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._marks: Marks = marks_for(worker)
        self._faults: list[str] = []
        self._fence = Fence(self._faults.append)
        self._planning = False
        self._places: list[_Place] = []
        self._next = self._requests = self._held_us = 0
        self._count: Callable[[Any], tuple[int, int, int] | None] = _count_prefill
        self._open: _Begun | None = None
        self._ended: list[_Begun] = []
        # The wrap stays; without a plan it only looks for one.
        wrap_method(worker, "execute_model", self._around_execute)

    def _around_execute(
        self, original: Any, scheduler_output: Any, *rest: Any, **named: Any
    ) -> Any:
        if not self._planning:
            return original(scheduler_output, *rest, **named)
        self._fence.call("step clock", self._begin, scheduler_output)
        result = original(scheduler_output, *rest, **named)
        self._fence.call("step clock", self._launched)
        return result

    def choose(self, side: str) -> None:
        """Ends the plan; from the next step on that side runs."""
        self._check_sides([side])
        self._begin_plan([])
        SIDES.switch(side)

    def plan(
        self, blocks: Sequence[tuple[str, int]], requests: int, *, prefill: bool, held_us: int = 0
    ) -> None:
        """Begins a plan: each step that fits takes its next place and runs on that side.

        A step fits that decodes exactly `requests` requests and nothing else, or with `prefill`
        one that computes tokens of a prompt. One that does not fit runs on the side of the place
        to come and is not measured.

        With `held_us` the device is held back that long before each step and the step begins behind
        that; the host then was ahead only if it had begun the next step, too, before the device was
        done with this one.
        """
        self._check_sides([side for side, _ in blocks])
        total = sum(steps for _, steps in blocks)
        if any(steps < 1 for _, steps in blocks) or total > MOST_STEPS:
            raise CommandError(f"a plan has blocks of 1 step or more, {MOST_STEPS} in all at most")
        if not prefill and requests < 1:
            raise CommandError(f"{requests} requests cannot be decoded; give 1 or more")
        refuse_other_steps(self._worker)
        self._check_works()
        self._marks.reset((4 if held_us else 2) * total)
        if held_us:
            self._marks.hold(1)  # whether it can, outside of any step
        self._requests, self._held_us = requests, held_us
        self._count = _count_prefill if prefill else self._count_decode
        self._begin_plan(
            [
                (number, side, index)
                for number, (side, steps) in enumerate(blocks)
                for index in range(steps)
            ]
        )
        if blocks:
            SIDES.switch(blocks[0][0])

    def times(self) -> list[list[int | str | bool | None]]:
        """The steps of the plan that were measured since the last call, oldest first.

        Each is ``[block, side, index in the block, duration in ns, end in ns since the epoch,
        prefill tokens, decoding requests, context tokens, whether the host was ahead]``.

        A step whose requests were all gone at the next one was the last of its burst: the time
        after it may be a pause, so that it has no duration and is left out.
        """
        self._check_works()
        ended, self._ended = self._ended, []
        return [
            [*b.place, self._marks.between(b.first, b.last), b.end_epoch_ns, *b.counts, b.ahead]
            for b in ended
        ]

    def _begin_plan(self, places: list[_Place]) -> None:
        self._places, self._next = places, 0
        self._open = None
        self._ended = []
        self._planning = bool(places)

    def _check_sides(self, sides: list[str]) -> None:
        for side in sides:
            if side not in SIDES.names:
                names = ", ".join(SIDES.names)
                raise CommandError(f"there is no side {side}; give one of {names}")

    def _check_works(self) -> None:
        if self._faults:
            raise CommandError(f"the clock of the steps is off: {self._faults[0]}")

    def _begin(self, output: Any) -> None:
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return  # the scheduler only tells of finished requests
        mark = -1
        if self._open is not None:
            mark = self._close(self._open, scheduled)
        if self._next == len(self._places):
            self._planning = False
            return
        place = self._places[self._next]
        SIDES.switch(place[1])
        counts = self._count(output)
        if counts is None:
            return
        self._next += 1
        if self._held_us:
            self._marks.hold(self._held_us)
            mark = -1
        first = self._marks.mark() if mark < 0 else mark
        self._open = _Begun(place, first, scheduled, counts)

    def _launched(self) -> None:
        """The host has launched the step that is open."""
        if self._open is not None:
            reached = self._marks.reached(self._open.first)
            self._open.ahead = None if reached is None else not reached
            if self._held_us:
                self._open.launched = self._marks.mark()

    def _close(self, begun: _Begun, scheduled: dict[str, int]) -> int:
        """Ends the open step at the start of the next one, which is marked."""
        self._open = None
        if begun.launched >= 0 and self._marks.reached(begun.launched):
            begun.ahead = False
        begun.last = self._marks.mark()
        begun.end_epoch_ns = time.time_ns()
        if not scheduled.keys().isdisjoint(begun.requests):
            self._ended.append(begun)
        return begun.last

    def _count_decode(self, output: Any) -> tuple[int, int, int] | None:
        """Prefill tokens, decoding requests, context tokens; None if the batch does not fit."""
        cached, requests = output.scheduled_cached_reqs, self._requests
        if not (
            output.total_num_scheduled_tokens == requests
            and len(output.num_scheduled_tokens) == requests
            and len(cached.req_ids) == requests
        ) or any(map(cached.is_context_phase, cached.req_ids)):
            return None
        return 0, requests, sum(cached.num_computed_tokens)


def _count_prefill(output: Any) -> tuple[int, int, int] | None:
    batch = read_batch(output)
    if not batch.prefill_tokens:
        return None
    return batch.prefill_tokens, batch.decode_requests, batch.context_tokens


def refuse_other_steps(worker: Any) -> None:
    """Raises CommandError where a step is not one token for each request of the whole model."""
    config = getattr(worker, "vllm_config", None)
    if getattr(config, "speculative_config", None) is not None:
        raise CommandError("steps of speculative decoding are not one token each; start without")
    refuse_stages(worker)


def refuse_stages(worker: Any) -> None:
    """Raises CommandError where a step is not of the whole model."""
    parallel = getattr(getattr(worker, "vllm_config", None), "parallel_config", None)
    if getattr(parallel, "pipeline_parallel_size", 1) > 1:
        raise CommandError("pipeline stages run several steps at a time; start without them")


def clock_of(worker: Any) -> StepClock:
    """The clock of a worker, installed when it is first asked for."""
    if _OF_WORKER not in vars(worker):
        setattr(worker, _OF_WORKER, StepClock(worker))
    clock: StepClock = getattr(worker, _OF_WORKER)
    return clock
