"""Decides which steps are recorded: warm-up first, then a number of them, then no more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_prof.profiler.batch import DECODE, Batch

__all__ = ["State", "Window"]


class State(Enum):
    """Where a recording stands; the values are shown to the person who waits."""

    WAITING = "waiting for the first step"
    WARMING = "letting warm-up steps pass"
    RECORDING = "recording"
    CLOSED = "done"


@dataclass
class Window:
    """The steps that a recording wants.

    Args:
        steps: steps to record, 0 for no limit.
        warmup_steps: steps to let pass first.
        decode_only: leave out steps that hold any prefill.
    """

    steps: int
    warmup_steps: int
    decode_only: bool
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

    def wants(self, batch: Batch) -> bool:
        """Whether this step is recorded; counts it as passed where it is not."""
        if self.closed:
            return False
        if self.passed < self.warmup_steps or (self.decode_only and batch.phase != DECODE):
            self.passed += 1
            return False
        return True

    def count(self) -> None:
        """Counts one recorded step and closes the window after the last one."""
        self.recorded += 1
        if self.steps and self.recorded >= self.steps:
            self.closed = True
