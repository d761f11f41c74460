"""How long spark-prof takes to end: never longer than whoever ends it waits, and never hurried more
by the first signal than by the second."""

from __future__ import annotations

import itertools

from spark_prof.profiler import interrupts
from spark_prof.profiler.interrupts import PATIENT, Patience

KINDS = (PATIENT, interrupts._HURRIED, interrupts._GIVEN_UP)


def longest(patience: Patience) -> float:
    """What all of it takes at most, in seconds."""
    waits = sum(seconds for _, seconds in patience.signals)
    return patience.flush_s + patience.engine_s + waits + patience.family_s


def test_after_sigterm_it_is_done_before_a_supervisor_kills_it() -> None:
    assert longest(interrupts._URGENT) <= 7


def test_each_further_signal_hurries_everything_but_the_flush_that_still_matters() -> None:
    for one, next_one in itertools.pairwise(KINDS):
        assert longest(next_one) < longest(one)
        for before, after in zip(one.signals, next_one.signals, strict=False):
            assert before[0] == after[0]
            assert after[1] < before[1]
    assert interrupts._HURRIED.flush_s == PATIENT.flush_s
    assert interrupts._HURRIED.engine_s == PATIENT.engine_s
    assert longest(interrupts._GIVEN_UP) == 0
