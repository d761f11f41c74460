"""How long spark-prof takes to end: never longer than whoever ends it waits, and never hurried more
by the first signal than by the second."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from spark_prof.profiler import interrupts
from spark_prof.profiler.interrupts import PATIENT, Interrupts, Patience

KINDS = (PATIENT, interrupts._HURRIED, interrupts._GIVEN_UP)


def longest(patience: Patience) -> float:
    """What all of it takes at most, in seconds."""
    waits = sum(seconds for _, seconds in patience.signals)
    return patience.flush_s + patience.engine_s + waits + patience.family_s


def test_the_times_are_those_of_the_page() -> None:
    page = " ".join((Path(__file__).parents[1] / "docs" / "record.md").read_text().split())
    (interrupt, seconds), (terminate, more) = PATIENT.signals
    assert (interrupt, terminate) == (signal.SIGINT, signal.SIGTERM)
    assert f"SIGINT, after {seconds:.0f} s SIGTERM, after {more:.0f} more SIGKILL" in page
    (hurried,) = {seconds for _, seconds in interrupts._HURRIED.signals}
    assert hurried == interrupts._HURRIED.family_s
    assert f"shortens these times to {hurried:.0f} s, not the writing" in page
    # What a command has left behind has as long as the command had.
    assert PATIENT.family_s == seconds


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


@pytest.mark.parametrize("heeded", [True, False])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("during", range(5))
def test_a_bundle_is_finished_unless_the_third_signal_gives_up(
    heeded: bool, before: int, during: int
) -> None:
    received, finished = Interrupts(), False
    for _ in range(before):
        received.on_signal(signal.SIGINT, None)
    if heeded and not before:
        received.heed()
    raised = False
    try:
        with received.finishing_bundle():
            for _ in range(during):
                received.on_signal(signal.SIGINT, None)
            finished = True
    except KeyboardInterrupt:
        raised = True
    gives_up = before + during >= 3
    assert finished is not gives_up
    assert raised is (gives_up or (heeded and not before and during > 0))
    if not raised and heeded and not before:
        with pytest.raises(interrupts.Terminated):
            received.on_signal(signal.SIGTERM, None)
        received.on_signal(signal.SIGTERM, None)  # only the first one raises


@pytest.mark.parametrize("sent", [signal.SIGINT, *interrupts._URGENTLY])
def test_a_signal_that_came_before_it_is_heeded_raises_then(sent: int) -> None:
    received = Interrupts()
    received.on_signal(sent, None)
    with pytest.raises(KeyboardInterrupt) as caught:
        received.heed()
    urgent = sent != signal.SIGINT
    assert isinstance(caught.value, interrupts.Terminated) is urgent
    assert received.urgent is urgent
    assert received.hung_up is (sent == signal.SIGHUP)
    assert received.patience is (interrupts._URGENT if urgent else PATIENT)
    assert interrupts.patience_of(caught.value) is received.patience
    received.defer()
    received.on_signal(signal.SIGINT, None)
    assert received.patience is (interrupts._URGENT if urgent else interrupts._HURRIED)
    received.on_signal(signal.SIGINT, None)
    assert received.patience is (interrupts._URGENT if urgent else interrupts._GIVEN_UP)
