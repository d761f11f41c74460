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
        (1, 0, False, "dddd", "d"),
    ],
)
def test_the_steps_that_are_taken(
    steps: int, warmup: int, decode_only: bool, phases: str, taken: str
) -> None:
    window = Window(steps, warmup, decode_only)
    assert recorded(window, phases) == taken
    assert window.recorded == len(taken)
    assert window.closed == (steps > 0 and len(taken) == steps)


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
    ("warmup", "stretches", "expected"),
    [
        (0, Stretches(), "WWWWWWWW"),
        (0, Stretches(0, 5), "WWWWWWWW"),
        (0, Stretches(1, 2), "WtWtWtWt"),
        (0, Stretches(2, 5), "WWtttWWt"),
        (0, Stretches(1, 100), "Wttttttt"),
        (3, Stretches(1, 3), "---WttWt"),
    ],
)
def test_watched_and_timed_steps_take_turns(
    warmup: int, stretches: Stretches, expected: str
) -> None:
    window = Window(0, warmup, stretches=stretches)
    letters = {Take.WATCH: "W", Take.TIME: "t", Take.SKIP: "-"}
    assert "".join(letters[window.wants(DECODE, 0)] for _ in range(8)) == expected


def test_only_watched_steps_count_and_skipped_ones_do_not_move_the_turns() -> None:
    window = Window(4, 1, True, Stretches(2, 4))
    assert recorded(window, "p" + "d" + "pdpd" + "mdmd" + "dd") == "dddd"
    assert window.closed
    assert window.wants(DECODE, 0) is Take.SKIP
