"""The signals that ask spark-prof to end, and how long it may take then.

The first one ends the recording. A second Ctrl-C hurries the command's end, not the last flush; a
third one gives up what has not been flushed by then. SIGTERM, SIGHUP (of a lost connection) and
SIGQUIT are urgent: whoever sent them may kill this process next.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from spark_prof.ending import unhurried

_URGENTLY = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds, once the recording was told to end."""

    flush_s: float  # for the last piece of the workers
    engine_s: float  # for the last rows of the scheduler
    # What the command is sent, and how long each may take; then it is killed.
    signals: tuple[tuple[signal.Signals, float], ...]
    family_s: float  # for what the command has left behind


PATIENT = Patience(30.0, 5.0, ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0)), 60.0)
_HURRIED = Patience(30.0, 5.0, ((signal.SIGINT, 3.0), (signal.SIGTERM, 3.0)), 3.0)
_GIVEN_UP = Patience(0.0, 0.0, (), 0.0)
_URGENT = Patience(3.0, 0.5, ((signal.SIGTERM, 2.0),), 1.0)
"""Supervisors send SIGKILL ten seconds after SIGTERM. # bar: done 7 s after it, and the bundle"""


class Terminated(KeyboardInterrupt):
    """SIGTERM came, or another signal that is as urgent."""


class Interrupts:
    """What has come of these signals. Only the first one raises, and that not before `heed`.

    An exception in the midst of a flush, or while the command is started or ended, would lose what
    was recorded or leave the command behind.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._raises_from: int | None = None

    def heed(self) -> None:
        """From here on the next signal raises KeyboardInterrupt; one that has come does at once."""
        self._raises_from = 1
        if self.received:
            self._raise(self.received[0])

    def defer(self) -> None:
        """From here on no signal raises."""
        self._raises_from = None

    @contextmanager
    def finishing_bundle(self) -> Iterator[None]:
        """Lets a bundle be finished before a signal raises; the third gives up."""
        before, self._raises_from = self._raises_from, max(3, len(self.received) + 1)
        try:
            yield
        finally:
            self._raises_from = before
        if before is not None and len(self.received) >= before:
            self._raise(self.received[-1])

    @property
    def urgent(self) -> bool:
        """Whether this process may be killed next."""
        return any(sent in self.received for sent in _URGENTLY)

    @property
    def hung_up(self) -> bool:
        """Whether nobody asked for the end: the terminal or the connection is gone."""
        return signal.SIGHUP in self.received[:1]

    @property
    def patience(self) -> Patience:
        """How long a command may still wait, by the signals that have come."""
        if self.urgent:
            return _URGENT
        return (PATIENT, PATIENT, _HURRIED)[len(self.received)] if self.count < 3 else _GIVEN_UP

    @property
    def count(self) -> int:
        """The number of signals that have come."""
        return len(self.received)

    def on_signal(self, sent: int, _: FrameType | None) -> None:
        """Notes a signal, and raises where the next one has to."""
        self.received.append(sent)
        if self._raises_from is not None and len(self.received) >= self._raises_from:
            self._raise(sent)

    def _raise(self, sent: int) -> None:
        self._raises_from = None
        raise Terminated if sent in _URGENTLY else KeyboardInterrupt


def patience_of(error: KeyboardInterrupt) -> Patience:
    """How long a command may still wait after that error."""
    return _URGENT if isinstance(error, Terminated) else PATIENT


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Takes in the signals for as long as a command runs."""
    received = Interrupts()
    with _handled(received.on_signal, (signal.SIGINT, *_URGENTLY)):
        yield received


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Raises KeyboardInterrupt at every one of them, of its kind, for as long as it is open."""

    def interrupt(sent: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt if sent == signal.SIGINT else Terminated

    with _handled(interrupt, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], None], signals: tuple[signal.Signals, ...]
) -> Iterator[None]:
    """Has the handler called, and nothing else, where this is the main thread.

    A shell that runs a script starts its background jobs with SIGINT and SIGQUIT ignored, so that
    the terminal does not end them; who sends SIGINT to a recording means it. nohup ignores SIGHUP
    because its user wants that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [sent for sent in signals if not (nohup and sent == signal.SIGHUP)]
    before = {sent: signal.signal(sent, handler) for sent in handled}
    try:
        with unhurried():
            yield
    finally:
        for sent, earlier in before.items():
            signal.signal(sent, earlier)
