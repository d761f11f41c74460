"""Steady windows: each batch size settles by itself, then so many of its steps are watched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_prof.profiler.batch import Batch
from spark_prof.profiler.window import RecordingState, SteadyWindow, Stretches, Take

STEP = 10_000_000
SAMPLE, PATIENCE = 16, 512
SETTLING = 2 * SAMPLE + 1
"""Steps of equal length that are let pass: the first has none before it to tell its time."""


def decode(size: int) -> Batch:
    return Batch(1, 0, 0, size, size, 100 * size)


PREFILL, MIXED = Batch(2, 1, 5, 0, 0, 0), Batch(3, 1, 5, 2, 2, 5)


class Run:
    """Steps one after another through a window."""

    def __init__(self, window: SteadyWindow) -> None:
        self.window, self.now = window, 1_800_000_000_000_000_001

    def steps(self, batch: Batch, times: Sequence[int] | int) -> str:
        """Runs steps that take these times, or so many of 10 ms; a letter each for what is done."""
        done = ""
        for took in [STEP] * times if isinstance(times, int) else times:
            take = self.window.wants(batch, self.now)
            if take is Take.WATCH:
                self.window.count()
            done += {Take.SKIP: "-", Take.TIME: "t", Take.WATCH: "W"}[take]
            self.now += took
        return done


def start(steps: int = 5, stretch: tuple[int, int] = (0, 0), sizes: Sequence[int] = ()) -> Run:
    return Run(SteadyWindow(steps, Stretches(*stretch), tuple(sizes)))


def test_steps_are_let_pass_until_their_times_are_steady() -> None:
    run = start()
    assert run.window.state is RecordingState.WAITING
    assert run.steps(decode(1), SETTLING) == "-" * SETTLING
    assert run.window.state is RecordingState.WARMING
    assert run.window.passed == SETTLING
    assert run.steps(decode(1), 20) == "WWWWW" + "-" * 15
    assert run.window.recorded == 5
    assert not run.window.closed


def test_a_warm_up_is_not_watched() -> None:
    """Steps become faster from 50 ms on, then stay."""
    times = [*np.linspace(5 * STEP, STEP, 100).astype(int).tolist(), *[STEP] * 100]
    done = start(0).steps(decode(1), times)
    assert 100 <= done.index("W") <= 100 + SETTLING
    assert "-" not in done[done.index("W") :]


def test_noise_and_a_slow_step_now_and_then_do_not_keep_it_waiting() -> None:
    for noise in (0.0, 0.05, 0.3):
        random = np.random.default_rng(7)
        times = (STEP * (1 + noise * random.standard_exponential(600))).astype(int).tolist()
        assert start(1).steps(decode(1), times).index("W") < 200
    times = [40 * STEP if n % 10 == 3 else STEP for n in range(100)]
    assert start().steps(decode(1), times).index("W") == SETTLING


def test_what_never_settles_is_watched_in_the_end() -> None:
    times = [int(STEP * 1.01**n) for n in range(PATIENCE + 3)]
    assert start().steps(decode(1), times) == "-" * PATIENCE + "WWW"


def test_batch_sizes_settle_apart() -> None:
    run = start(2)
    run.steps(decode(1), SETTLING)
    assert run.steps(decode(8), SETTLING) == "-" * SETTLING
    assert run.steps(decode(8), 4) == "WW--"
    assert run.steps(decode(1), 4) == "WW--"
    assert run.window.recorded == 4


def test_the_time_between_two_batch_sizes_is_nobody_s() -> None:
    """Alternating sizes never follow themselves: no time of theirs is known, patience decides."""
    run = start()
    done = "".join(run.steps(decode(size), 1) for _ in range(PATIENCE) for size in (1, 8))
    assert "W" not in done
    assert run.steps(decode(1), 1) == "W"


def test_prefill_is_never_watched() -> None:
    run = start()
    run.steps(decode(1), SETTLING)
    for batch in (PREFILL, MIXED):
        assert run.steps(batch, 3) == "---"
        assert run.steps(decode(1), 2) == "WW"


def test_a_prefill_in_between_is_no_decode_time() -> None:
    run = start()
    for _ in range(2 * SAMPLE):
        run.steps(PREFILL, [30 * STEP])
        run.steps(decode(1), [STEP])
    # Not one decode step followed another.
    assert run.steps(decode(1), SETTLING - 1) == "-" * (SETTLING - 1)
    assert run.steps(decode(1), 1) in "-W"


def test_the_window_closes_when_the_wanted_sizes_are_done() -> None:
    run = start(2, sizes=(1, 8))
    assert run.steps(decode(4), 3 * SETTLING) == "-" * 3 * SETTLING
    assert run.steps(decode(1), SETTLING + 3) == "-" * SETTLING + "WW-"
    assert not run.window.closed
    assert run.steps(decode(8), SETTLING + 1) == "-" * SETTLING + "W"
    assert run.steps(decode(8), 2) == "W-"
    assert run.window.state is RecordingState.CLOSED
    assert run.window.recorded == 4


def test_without_a_number_of_steps_it_goes_on() -> None:
    run = start(0, sizes=(1,))
    assert run.steps(decode(1), SETTLING + 300) == "-" * SETTLING + "W" * 300
    assert not run.window.closed


def test_watched_and_timed_steps_take_turns_for_each_size() -> None:
    run = start(6, (2, 5))
    run.steps(decode(1), SETTLING)
    run.steps(decode(8), SETTLING)
    assert run.steps(decode(1), 3) == "WWt"
    assert run.steps(decode(8), 6) == "WWtttW"
    assert run.steps(decode(1), 20) == "ttWWtttWW" + "-" * 11
