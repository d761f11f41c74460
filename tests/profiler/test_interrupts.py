"""What the signals do that ask spark-prof to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from spark_prof.profiler.interrupts import PATIENT, Interrupts, interrupts, terminated_as_interrupt


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    kept = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for sent, handler in kept.items():
        signal.signal(sent, handler)


def send(sent: int) -> None:
    os.kill(os.getpid(), sent)


def test_a_job_of_a_script_s_background_hears_sigint_nevertheless() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with terminated_as_interrupt():
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with pytest.raises(KeyboardInterrupt):
                send(sent)
    with interrupts() as received:
        received.heed()
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_nohup_is_heeded() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupts() as received, terminated_as_interrupt():
        send(signal.SIGHUP)
    assert received.count == 0


def test_only_the_first_one_raises_and_only_when_heeded() -> None:
    with interrupts() as received:
        assert received.patience is PATIENT
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            received.heed()
        send(signal.SIGINT)
        hurried = received.patience
        assert hurried.flush_s == PATIENT.flush_s
        assert sum(s for _, s in hurried.signals) < sum(s for _, s in PATIENT.signals)
        send(signal.SIGINT)
        assert received.patience.signals == ()
        assert not received.urgent
        send(signal.SIGTERM)
        assert received.urgent


def test_a_bundle_is_finished_before_a_signal_raises() -> None:
    received, done = Interrupts(), []

    def finish() -> None:
        with received.finishing_bundle():
            received.on_signal(signal.SIGINT, None)
            received.on_signal(signal.SIGINT, None)
            done.append(True)

    received.heed()
    with pytest.raises(KeyboardInterrupt):
        finish()
    assert done
    with received.finishing_bundle(), pytest.raises(KeyboardInterrupt):
        received.on_signal(signal.SIGINT, None)
    received = Interrupts()
    received.on_signal(signal.SIGHUP, None)
    assert received.hung_up
