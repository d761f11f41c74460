"""Which steps are recorded."""

from __future__ import annotations

import pytest

from spark_prof.profiler.batch import Batch
from spark_prof.profiler.window import State, Take, Window

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


@pytest.mark.parametrize(
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
