"""Which steps are recorded."""

from __future__ import annotations

from spark_prof.profiler.batch import Batch
from spark_prof.profiler.window import State, Stretches, Take, Window
from tests.rows import each_row

PREFILL, DECODE = Batch(1, 1, 5, 0, 0, 0), Batch(2, 0, 0, 1, 1, 5)
MIXED = Batch(3, 1, 5, 1, 1, 5)
LETTERS = {"p": PREFILL, "d": DECODE, "m": MIXED}


def recorded(window: Window, phases: str) -> str:
    """The phases of the steps that the window took."""
    taken = ""
    for letter in phases:
        if window.wants(LETTERS[letter], 0) is Take.WATCH:
            taken += letter
            window.count()
    return taken


@each_row(
    ("steps", "warmup", "decode_only", "phases", "taken"),
    [
        (0, 0, False, "pdmd", "pdmd"),
        (2, 0, False, "pdmd", "pd"),
        (0, 2, False, "pdmd", "md"),
        (1, 2, False, "pdmd", "m"),
        (0, 0, True, "pdmd", "dd"),
        (1, 0, True, "pdmd", "d"),
        (0, 2, True, "pdmd", "d"),
        (0, 9, False, "pdmd", ""),
        (1, 0, True, "pmp", ""),
    ],
)
def test_the_steps_that_are_taken(
    steps: int, warmup: int, decode_only: bool, phases: str, taken: str
) -> None:
    window = Window(steps, warmup, decode_only)
    assert recorded(window, phases) == taken
    assert window.recorded == len(taken)
    assert window.closed == (steps > 0 and len(taken) == steps)


def test_a_closed_window_counts_nothing_more() -> None:
    window = Window(1, 0, False)
    assert recorded(window, "dddd") == "d"
    assert (window.passed, window.recorded) == (0, 1)


def test_states() -> None:
    window = Window(1, 1, False)
    assert window.state is State.WAITING
    recorded(window, "p")
    assert window.state is State.WARMING
    window.steps = 2
    recorded(window, "d")
    assert window.state is State.RECORDING
    recorded(window, "d")
    assert window.state is State.CLOSED


@each_row(
    ("stretches", "expected"),
    [
        (Stretches(), "WWWWWWWW"),
        (Stretches(0, 5), "WWWWWWWW"),
        (Stretches(1, 2), "WtWtWtWt"),
        (Stretches(2, 5), "WWtttWWt"),
        (Stretches(1, 100), "Wttttttt"),
    ],
)
def test_watched_and_timed_steps_take_turns(stretches: Stretches, expected: str) -> None:
    window = Window(0, stretches=stretches)
    takes = [window.wants(DECODE, 0) for _ in range(8)]
    assert "".join("W" if take is Take.WATCH else "t" for take in takes) == expected


def test_only_watched_steps_count_and_skipped_ones_do_not_move_the_turns() -> None:
    window = Window(4, 1, True, Stretches(2, 4))
    assert recorded(window, "p" + "d" + "pdpd" + "mdmd" + "dd") == "dddd"
    assert window.closed
    assert window.wants(DECODE, 0) is Take.SKIP


def test_the_turns_begin_after_the_warm_up() -> None:
    window = Window(0, 3, False, Stretches(1, 3))
    takes = [window.wants(DECODE, 0) for _ in range(7)]
    assert takes == [Take.SKIP] * 3 + [Take.WATCH, Take.TIME, Take.TIME, Take.WATCH]
