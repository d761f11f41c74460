"""The clock runs a plan of blocks and measures the steps that fit it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.swaps.clock import MOST_STEPS, StepClock
from spark_prof.swaps.swap_settings import SIDES
from tests.profiler.fakes import batch
from tests.rows import each_row

pytestmark = pytest.mark.usefixtures("sides")


class Worker:
    """Notes on which side each step ran."""

    def __init__(self, **config: Any) -> None:
        self.device = SimpleNamespace(type="cpu")
        self.vllm_config = SimpleNamespace(**config)
        self.ran: list[str] = []

    def execute_model(self, scheduler_output: Any) -> int:
        self.ran.append(SIDES.active)
        return len(self.ran)


def clocked(**config: Any) -> tuple[Worker, StepClock]:
    SIDES.active = "a"
    worker = Worker(**config)
    clock = StepClock(worker)
    return worker, clock


def decode(requests: int = 2, position: int = 10) -> Any:
    names = [f"r{i}" for i in range(requests)]
    return batch(dict.fromkeys(names, 1), cached=dict.fromkeys(names, position))


PREFILL = batch({"r0": 1, "p": 6}, new={"p": 2}, cached={"r0": 9})
CHUNK = batch({"r0": 1, "r1": 1}, cached={"r0": 9, "r1": 4}, context=("r1",))
DRAFTS = batch({"r0": 2, "r1": 1}, cached={"r0": 9, "r1": 4})
NOTHING = batch({})


def test_each_step_runs_on_its_side_and_is_measured() -> None:
    worker, clock = clocked()
    clock.plan([("b", 2), ("a", 1), ("a2", 2)], 2, prefill=False)
    for position in range(7):
        assert worker.execute_model(decode(position=position)) == position + 1
    assert worker.ran == ["b", "b", "a", "a2", "a2", "a2", "a2"]
    rows = clock.times()
    assert [row[:3] for row in rows] == [
        [0, "b", 0], [0, "b", 1], [1, "a", 0], [2, "a2", 0], [2, "a2", 1]
    ]  # fmt: skip
    assert [row[5:] for row in rows] == [[0, 2, 2 * position, None] for position in range(5)]
    assert clock.times() == []


def test_durations_are_the_time_between_the_steps() -> None:
    """Where every step is measured, they add up to the time from the first to the last."""
    blocks = [("a", 3), ("b", 1), ("a2", 5), ("b", 2)]
    worker, clock = clocked()
    clock.plan(blocks, 2, prefill=False)
    before, epoch = time.perf_counter_ns(), time.time_ns()
    for position in range(12):
        worker.execute_model(decode(position=position))
    after, later = time.perf_counter_ns(), time.time_ns()
    steps = clock.times()
    assert len(steps) == 11
    assert 0 < sum(step[3] for step in steps) <= after - before
    ends = [step[4] for step in steps]
    assert ends == sorted(ends)
    assert epoch <= ends[0] <= ends[-1] <= later


@each_row("other", [decode(1), decode(3), PREFILL, CHUNK, DRAFTS])
def test_a_step_that_does_not_fit_runs_on_the_side_to_come_and_does_not_count(other: Any) -> None:
    worker, clock = clocked()
    clock.plan([("a", 1), ("b", 1)], 2, prefill=False)
    for output in (other, decode(), other, decode(), decode()):
        worker.execute_model(output)
    assert worker.ran == ["a", "a", "b", "b", "b"]
    assert [step[1] for step in clock.times()] == ["a", "b"]


def test_the_last_step_of_a_burst_has_no_duration() -> None:
    """The next request may come much later; it takes no place in the plan twice."""
    worker, clock = clocked()
    clock.plan([("a", 2), ("b", 1)], 1, prefill=False)
    worker.execute_model(decode(1))
    worker.execute_model(decode(1))
    worker.execute_model(batch({"other": 1}, cached={"other": 3}))
    worker.execute_model(batch({"other": 1}, cached={"other": 4}))
    assert [step[:3] for step in clock.times()] == [[0, "a", 0], [1, "b", 0]]


def test_a_plan_of_prefills() -> None:
    worker, clock = clocked()
    clock.plan([("b", 1), ("a", 2)], 0, prefill=True)
    parts = batch({"q": 4}, cached={"q": 8}, context=("q",))
    last = batch({"q": 1}, cached={"q": 12})
    for output in (decode(), NOTHING, PREFILL, decode(), parts, parts, last):
        worker.execute_model(output)
    assert worker.ran == ["b", "b", "b", "a", "a", "a", "a"]
    assert [step[5:] for step in clock.times()] == [
        [6, 1, 11, None],
        [4, 0, 8, None],
        [4, 0, 8, None],
    ]


class Device:
    """Marks of a simulated stream; times in us. A mark is reached when all before it is done."""

    def __init__(self, host_us: int, device_us: int, *, waits: bool) -> None:
        self.host_us, self.device_us, self.waits = host_us, device_us, waits
        self.now = self.free = 0  # the host's clock, and when the stream is done
        self.at: list[int] = []
        self.room = 0

    def reset(self, count: int) -> None:
        self.at, self.room = [], count

    def mark(self) -> int:
        self.at.append(max(self.now, self.free))
        assert len(self.at) <= self.room
        return len(self.at) - 1

    def between(self, first: int, second: int) -> int:
        return self.at[second] - self.at[first]

    def reached(self, mark: int) -> bool:
        return self.at[mark] <= self.now

    def hold(self, us: int) -> None:
        self.free = max(self.now, self.free) + us

    def step(self) -> None:
        """What a worker does: half of the host's time before its kernels, half behind them."""
        self.now += self.host_us // 2
        self.hold(self.device_us)
        self.now += self.host_us // 2

    def wait(self) -> None:
        """One step is launched ahead, or none."""
        self.now = max(self.now, self.free - (0 if self.waits else self.device_us))


@each_row(
    ("held_us", "waits", "took", "ahead"),
    [(0, False, 1500, False), (2000, False, 1000, True), (2000, True, None, False)],
)
def test_a_device_that_is_held_back_shows_what_it_needs_alone(
    held_us: int, waits: bool, took: int | None, ahead: bool
) -> None:
    """The host takes 1.5 ms for a step, the device 1 ms; or the host waits for each result."""
    _, clock = clocked()
    device = Device(1500, 1000, waits=waits)
    clock._marks = device  # type: ignore[assignment]

    def execute(output: Any) -> None:
        device.step()

    clock.plan([("a", 6)], 2, prefill=False, held_us=held_us)
    for position in range(7):
        clock._around_execute(execute, decode(position=position))
        device.wait()
    steps = clock.times()[1:]
    assert {step[8] for step in steps} == {ahead}
    if took is not None:
        assert {step[3] for step in steps} == {took}


def test_choosing_a_side_ends_the_plan() -> None:
    worker, clock = clocked()
    clock.plan([("a", 5)], 2, prefill=False)
    worker.execute_model(decode())
    clock.choose("b")
    worker.execute_model(decode())
    worker.execute_model(scheduler_output=decode())
    assert worker.ran == ["a", "b", "b"]
    assert clock.times() == []


REFUSED: dict[str, tuple[Any, int, dict[str, Any], str]] = {
    "a side": ([("c", 1)], 1, {}, "no side c; give one of a, b, a2"),
    "no steps": ([("a", 0)], 1, {}, "1 step or more"),
    "fewer than no steps": ([("a", -1)], 1, {}, "1 step or more"),
    "too many steps": ([("a", MOST_STEPS), ("b", 1)], 1, {}, "in all at most"),
    "no requests": ([("a", 1)], 0, {}, "0 requests cannot be decoded"),
    "drafts": ([("a", 1)], 1, {"speculative_config": object()}, "speculative decoding"),
    "stages": (
        [("a", 1)], 1,
        {"parallel_config": SimpleNamespace(pipeline_parallel_size=2)},
        "pipeline stages",
    ),
}  # fmt: skip


@each_row(("blocks", "requests", "config", "message"), REFUSED.values())
def test_plans_that_cannot_be_measured(
    blocks: Any, requests: int, config: dict[str, Any], message: str
) -> None:
    _, clock = clocked(**config)
    with pytest.raises(CommandError, match=message):
        clock.plan(blocks, requests, prefill=False)


def test_a_fault_turns_the_clock_off_and_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    worker, clock = clocked()
    clock.plan([("a", 3)], 2, prefill=False)
    damaged = SimpleNamespace(num_scheduled_tokens={"r0": 1})
    assert [worker.execute_model(output) for output in (decode(), damaged, decode())] == [1, 2, 3]
    for ask in (clock.times, lambda: clock.plan([("a", 1)], 1, prefill=False)):
        with pytest.raises(CommandError, match="the clock of the steps is off: hook step clock"):
            ask()
    assert len(caplog.records) == 1
