"""Decides which steps are recorded: warm-up first, then a number of them, then no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from spark_prof.profiler.batch import DECODE, Batch


class State(Enum):
    """Where a recording stands; the values are shown to the person who waits."""

    WAITING = "waiting for the first step"
    WARMING = "letting warm-up steps pass"
    RECORDING = "recording"
    CLOSED = "done"


class Take(Enum):
    """What happens to a step."""

    SKIP = "nothing is kept of it"
    TIME = "its times are kept"
    WATCH = "its times and kernels are kept"


@dataclass
class Stretches:
    """Turns of watched and merely timed steps, which together show what watching costs.

    Args:
        watched: steps of a turn that are watched; 0 watches all of them.
        period: steps of a turn.
    """

    watched: int = 0
    period: int = 0
    position: int = 0

    def next(self) -> Take:
        """What happens to the next step."""
        if not self.watched:
            return Take.WATCH
        position = self.position % self.period
        self.position += 1
        return Take.WATCH if position < self.watched else Take.TIME


@dataclass
class Window:
    """The steps that a recording wants.

    Args:
        steps: steps to watch, 0 for no limit.
        warmup_steps: steps to let pass first.
        decode_only: leave out steps that hold any prefill.
        stretches: how watched and timed steps take turns.
    """

    steps: int
    warmup_steps: int = 0
    decode_only: bool = False
    stretches: Stretches = field(default_factory=Stretches)
    passed: int = 0
    recorded: int = 0
    closed: bool = False

    @property
    def state(self) -> State:
        """Where the recording stands."""
        if self.closed:
            return State.CLOSED
        if self.recorded:
            return State.RECORDING
        return State.WARMING if self.passed else State.WAITING

    def wants(self, batch: Batch, now_ns: int) -> Take:  # noqa: ARG002 a steady window looks at it
        """What happens to the step that begins at that time; counts it as passed if nothing."""
        if self.closed:
            return Take.SKIP
        if self.passed < self.warmup_steps or (self.decode_only and batch.phase != DECODE):
            self.passed += 1
            return Take.SKIP
        return self.stretches.next()

    def count(self) -> None:
        """Counts one watched step and closes the window after the last one."""
        self.recorded += 1
        if self.steps and self.recorded >= self.steps:
            self.closed = True
