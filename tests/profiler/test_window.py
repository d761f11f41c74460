"""Which steps are recorded."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from spark_prof.profiler import batch
from spark_prof.profiler.batch import Batch
from spark_prof.profiler.window import (
    TURN,
    WATCHED,
    RecordingState,
    Sampling,
    StepWindow,
    Stretches,
    Take,
)
from tests.rows import each_row

PREFILL, DECODE = Batch(1, 1, 5, 0, 0, 0), Batch(2, 0, 0, 1, 1, 5)
MIXED = Batch(3, 1, 5, 1, 1, 5)
LETTERS = {"p": PREFILL, "d": DECODE, "m": MIXED}


def recorded(window: StepWindow, phases: str) -> str:
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
    window = StepWindow(steps, warmup, decode_only)
    assert recorded(window, phases) == taken
    assert window.recorded == len(taken)
    assert window.closed == (steps > 0 and len(taken) == steps)


def test_states() -> None:
    window = StepWindow(1, 1, False)
    assert window.state is RecordingState.WAITING
    recorded(window, "p")
    assert window.state is RecordingState.WARMING
    window.steps = 2
    recorded(window, "d")
    assert window.state is RecordingState.RECORDING
    recorded(window, "d")
    assert window.state is RecordingState.CLOSED


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
    window = StepWindow(0, warmup, stretches=stretches)
    letters = {Take.WATCH: "W", Take.TIME: "t", Take.SKIP: "-"}
    assert "".join(letters[window.wants(DECODE, 0)] for _ in range(8)) == expected


def test_only_watched_steps_count_and_skipped_ones_do_not_move_the_turns() -> None:
    window = StepWindow(4, 1, True, Stretches(2, 4))
    assert recorded(window, "p" + "d" + "pdpd" + "mdmd" + "dd") == "dddd"
    assert window.closed
    assert window.wants(DECODE, 0) is Take.SKIP


def test_a_sample_has_the_first_steps_of_each_kind_and_then_some_of_each_turn() -> None:
    sampling = Sampling()
    steps = [(batch.PREFILL, 0)] + [(batch.DECODE, 1)] * 700
    taken = [sampling.next(*step) for step in steps]
    watched = [number for number, take in enumerate(taken) if take is Take.WATCH]
    assert watched == [*range(24), *range(256, 264), *range(512, 520)]


def test_a_kind_that_comes_late_is_watched_when_it_comes() -> None:
    sampling = Sampling()
    for _ in range(40):
        sampling.next(batch.DECODE, 1)
    late = [sampling.next(batch.PREFILL, 0)] + [sampling.next(batch.DECODE, 8) for _ in range(60)]
    watched = [number for number, take in enumerate(late) if take is Take.WATCH]
    assert watched == list(range(24))  # the prefill, the wanted ones, and what is watched at once


def test_a_load_of_changing_batches_turns_seldom() -> None:
    """To turn costs time: no more often than a few times a turn, whatever comes."""
    sampling, random = Sampling(), Random(1)
    taken = [
        sampling.next(
            random.choice((batch.PREFILL, batch.DECODE, batch.DECODE, batch.MIXED)),
            random.randint(0, 64),
        )
        for _ in range(20 * TURN)
    ]
    turns = sum(a is not b for a, b in pairwise(taken[4 * TURN :]))
    assert turns <= 16 * TURN / 32
    share = taken.count(Take.WATCH) / len(taken)
    assert WATCHED / TURN <= share < 1 / 3


def test_timed_steps_of_a_sample_count_as_recorded() -> None:
    window = StepWindow(steps=100, sampling=Sampling())
    taken = [window.wants(DECODE, 0) for _ in range(99)]
    for take in taken:
        assert window.counts(watched=take is Take.WATCH)
        window.count()
    assert (window.recorded, window.closed) == (99, False)
    window.count()
    assert window.closed
    assert not StepWindow(steps=100).counts(watched=False)
