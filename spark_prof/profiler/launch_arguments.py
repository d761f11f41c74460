"""Which steps have the arguments of their kernels read, that are launched outside of graphs."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from spark_prof.profiler.batch import Batch

_STEPS = 2
"""Of each kind of step so many have the arguments of their kernels read; the others are alike."""

_MOST_KINDS = 32


class ReadLaunches(Protocol):
    """Switches a backend's reading of arguments."""

    def __call__(self, *, on: bool) -> None:
        """On or off."""


class LaunchArguments:
    """Has a backend read arguments in the first steps of each kind."""

    def __init__(self) -> None:
        self._kinds: Counter[tuple[int, int]] = Counter()
        self._on = False  # what the backend was last told

    def begin_step(self, read: ReadLaunches, batch: Batch) -> None:
        """Switches the reading for a step that begins."""
        kind = (batch.phase, batch.decode_requests)
        reads = self._kinds[kind] < _STEPS and len(self._kinds) <= _MOST_KINDS
        self._kinds[kind] += 1
        if reads != self._on:
            read(on=reads)
            self._on = reads

    def stopped(self) -> None:
        """The backend has paused or stopped, and reads nothing when it goes on."""
        self._on = False
