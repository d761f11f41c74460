"""Chrome traces as py-spy writes them: what changed, and when each look was."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.readers.py_spy import TICK_FUNCTION, TICKS, frames_of, read_py_spy

RECORDER, TICKER, WORKER, FORKED = 100, 7000, 101, 102
STARTED = 1_800_000_000_000_000_001
PACKAGES = "/home/ann/venv/lib/python3.12/site-packages"
Stack = list[tuple[str, str]]


class Trace:
    """A file of changes, written as py-spy writes it from samples of all threads."""

    def __init__(self, anew: bool = False) -> None:
        self.events: list[dict[str, object]] = []
        self.last: dict[int, Stack] = {}
        self.anew = anew

    def look(self, us: int, pid: int, thread: int, stack: Stack) -> None:
        before = self.last.get(thread, [])
        stack = [("", f'process {pid}:"python"'), *stack]
        same = 0
        for one, other in zip(before, stack, strict=False):
            if one != other:
                break
            same += 1
        for frame in reversed(before[same:]):
            self._event("E", us, pid, thread, frame)
        for frame in stack[same:]:
            self._event("B", us, pid, thread, frame)
        self.last[thread] = stack

    def _event(self, kind: str, us: int, pid: int, thread: int, frame: tuple[str, str]) -> None:
        self.events.append(
            {"ph": kind, "ts": us, "pid": pid, "tid": thread, "cat": "py-spy",
             "name": frame[1], "args": {"filename": frame[0], "line": 0}}
        )  # fmt: skip

    def write(self, folder: Path) -> Path:
        path = folder / "py-spy.json"
        path.write_text(json.dumps(self.events))
        return path


def tick(number: int) -> Stack:
    return [("/x/threading.py", "Thread._bootstrap"),
            ("/x/ticker.py", TICK_FUNCTION.format(number % TICKS))]  # fmt: skip


STEP = [(f"{PACKAGES}/vllm/v1/engine/core.py", "EngineCore.step")]
SCHEDULE = [*STEP, (f"{PACKAGES}/vllm/v1/core/sched/scheduler.py", "Scheduler.schedule")]
OWN = [*STEP, ("/home/ann/secret-project/plan.py", "plan")]


def ticks(seconds: int = 4, tick_ns: int = 1_000_000) -> np.ndarray:
    return STARTED - 50_000_000 + tick_ns * np.arange(1000 * seconds, dtype=np.int64)


def test_every_look_has_its_time_and_stack(tmp_path: Path) -> None:
    for seed in range(20):
        random, trace, entered = Random(seed), Trace(), ticks()
        behind_ns = random.randrange(300_000_000)  # from the start of py-spy to that of its clock
        looks, us = [], 1000
        for _ in range(200):
            us += random.randrange(1100, 9000)
            at = STARTED + behind_ns + 1000 * us
            stack = random.choice((STEP, SCHEDULE, OWN))
            late = random.randrange(100)
            trace.look(us, RECORDER, TICKER, tick(int(np.searchsorted(entered, at)) - 1))
            trace.look(us + late, WORKER, 1, stack)
            looks.append((at, len(stack)))
        read = read_py_spy(trace.write(tmp_path), RECORDER, TICKER, entered, STARTED)
        assert read.rounds == len(looks)
        off = np.abs(read.time_ns - np.array([at for at, _ in looks]))
        assert (off <= 1_000_000).all()
        assert np.quantile(off, 0.95) <= read.error_ns <= 1_100_000
        depths = [len(frames_of(read.stacks[stack])) for stack in read.stack.tolist()]
        # OWN and SCHEDULE are as deep as each other; what was on each is compared below.
        assert depths == [depth for _, depth in looks]
        assert set(read.process.tolist()) == {WORKER}


def test_processes_of_one_fork_share_the_number_of_a_thread(tmp_path: Path) -> None:
    trace, entered = Trace(), ticks()
    for number in range(50):
        us = 1000 + 5000 * number
        trace.look(us, RECORDER, TICKER, tick(int((1000 * us + 50_000_000) // 1_000_000)))
        trace.look(us + 10, WORKER, 1, SCHEDULE if number % 2 else STEP)
        trace.look(us + 20, FORKED, 1, OWN)
    read = read_py_spy(trace.write(tmp_path), RECORDER, TICKER, entered, STARTED)
    stacks = [read.stacks[number] for number in read.stack.tolist()]
    of_worker = [s for s, pid in zip(stacks, read.process, strict=True) if pid == WORKER]
    assert len(of_worker) == read.rounds == 50
    assert [s.count("\n") for s in of_worker] == [0, 1] * 25
    assert {s for s, pid in zip(stacks, read.process, strict=True) if pid == FORKED} == {
        "vllm/v1/engine/core.py:EngineCore.step\nplan.py:plan"
    }


def test_an_unchanged_thread_shows_what_it_showed(tmp_path: Path) -> None:
    trace, entered = Trace(), ticks()
    for number in range(30):
        us = 1000 + 5000 * number
        trace.look(us, RECORDER, TICKER, tick(int((1000 * us + 50_000_000) // 1_000_000)))
        trace.look(us + 5, WORKER, 1, STEP)
    read = read_py_spy(trace.write(tmp_path), RECORDER, TICKER, entered, STARTED)
    assert len(read.stack) == 30
    assert read.stacks == ("vllm/v1/engine/core.py:EngineCore.step",)


def test_a_home_is_in_no_frame(tmp_path: Path) -> None:
    trace, entered = Trace(), ticks()
    odd = [("<frozen runpy>", "run"), ("/home/ann/vllm/vllm/v1/outputs.py", "f"),
           ("/usr/lib/python3.12/threading.py", "g"), ("/home/ann/a:b.py", "h\nk")]  # fmt: skip
    trace.look(1000, RECORDER, TICKER, tick(51))
    trace.look(1001, WORKER, 1, odd)
    read = read_py_spy(trace.write(tmp_path), RECORDER, TICKER, entered, STARTED)
    assert read.stacks[0].split("\n") == [
        "<frozen runpy>:run", "vllm/v1/outputs.py:f", "threading.py:g", "a.b.py:h k",
    ]  # fmt: skip


def test_a_py_spy_that_numbers_threads_anew_is_read(tmp_path: Path) -> None:
    trace, entered = Trace(), ticks()
    trace.events += [
        {"ph": "M", "ts": 0, "pid": RECORDER, "tid": 0, "name": "thread_name", "cat": "py-spy",
         "args": {"filename": "", "name": f"{TICKER}: ticker", "line": None}}
    ]  # fmt: skip
    trace.look(1000, RECORDER, 0, tick(51))
    trace.look(1001, WORKER, 1, STEP)
    read = read_py_spy(trace.write(tmp_path), RECORDER, TICKER, entered, STARTED)
    assert read.rounds == 1


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"ph":"B"}]', "[]"])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "py-spy.json"
    path.write_text(content)
    with pytest.raises(CommandError) as error:
        read_py_spy(path, RECORDER, TICKER, ticks(), STARTED)
    assert "\n" not in str(error.value)
