"""What a worker captured, and what each CUDA graph is for, by where its capture lay.

vLLM captures more than its model's forward: a drafter's, builds of attention metadata, an encoder's
of images, and graphs that it throws away once it knows how much memory they take. What was called
while a graph was captured, and whose method captured it, tell them apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from spark_prof.vocabulary import GRAPH_KINDS

MODEL, DRAFTER, METADATA, ENCODER, UBATCHES, MEMORY, OTHER = range(1, len(GRAPH_KINDS))
"""Numbers of vocabulary.GRAPH_KINDS."""

PIECEWISE, FULL, BREAKABLE = 1, 2, 3
"""vLLM's CUDAGraphMode, and a piece between two eager breaks."""

CaptureRow = tuple[int, int, int, int, int, int]


@dataclass
class _Open:
    """The capture that runs."""

    begun: int
    mode: int
    thread: int
    forwards: list[tuple[int, int]]  # kind of the model and thread of each call meanwhile


@dataclass
class CaptureLog:
    """The captures of one worker, as rows of traces.chunks.CAPTURE_DTYPE."""

    rows: list[CaptureRow] = field(default_factory=list)
    tokens: int = 0  # of the batch with which a model was called last
    _around: list[int] = field(default_factory=list)
    _inside: list[tuple[int, int]] = field(default_factory=list)
    _open: _Open | None = None
    _calls: int = 0  # of a model by the thread that captures
    _group: int = -1
    _piece_of: tuple[int, int] = (-1, -1)

    @property
    def measures_memory(self) -> bool:
        """Whether what is captured now is thrown away."""
        return MEMORY in self._around

    @property
    def drafts(self) -> bool:
        """Whether a graph is captured around all of what a drafter does, its model's call too."""
        call = self._open
        return call is not None and call.mode == FULL and self._around[-1:] == [DRAFTER]

    @contextmanager
    def within(self, kind: int) -> Iterator[None]:
        """While what captures graphs of that kind runs."""
        self._around.append(kind)
        try:
            yield
        finally:
            self._around.pop()

    @contextmanager
    def forward(self, kind: int) -> Iterator[None]:
        """While a model of that kind is called."""
        call = kind, threading.get_ident()
        self._inside.append(call)
        self._calls += 1
        if self._open is not None:
            self._open.forwards.append(call)
        try:
            yield
        finally:
            self._inside.remove(call)

    def begin(self, pieces: int | None = None) -> None:
        """A capture begins.

        Args:
            pieces: how many pieces of a breakable graph are captured already; None where it is no
                such piece.
        """
        thread = threading.get_ident()
        inside = [call for call in self._inside if call[1] == thread]
        # A piece is captured inside the model, a full graph around it; a breakable one begins there
        mode = BREAKABLE if pieces is not None else PIECEWISE if inside else FULL
        piece_of = mode, self._calls if mode == PIECEWISE else 0
        if mode == FULL or piece_of != self._piece_of or pieces == 0:
            self._group += 1
        self._piece_of = piece_of
        self._open = _Open(time.time_ns(), mode, thread, list(self._inside))

    def close(self) -> None:
        """The capture that ran last has ended."""
        if (ended := self._open) is None:
            return
        self._open = None
        row = ended.begun, time.time_ns(), self.tokens, ended.mode
        self.rows.append((*row, self._kind(ended), self._group))

    def _kind(self, ended: _Open) -> int:
        if self.measures_memory:
            return MEMORY
        inner = self._around[-1] if self._around else OTHER
        if inner in (METADATA, ENCODER):
            return inner
        if any(thread != ended.thread for _, thread in ended.forwards):
            return UBATCHES
        kinds = {kind for kind, _ in ended.forwards}
        return min(kinds, default=inner)  # a model's before a drafter's


@dataclass(frozen=True)
class EagerBreak:
    """What a breakable graph runs between two of its pieces."""

    capture: Callable[[], Any]  # a weak reference to what has the segments
    index: int  # of the segment
    events: int  # so many calls were entered or left before it


def open_at(codes: list[int], counts: list[int]) -> list[int]:
    """The module that is open after so many of the events, -1 for none; the counts ascend.

    >>> open_at([6, 8, -8, -6], [1, 2, 3, 4])
    [5, 7, 5, -1]
    """
    modules, stack, position = [], [-1], 0
    for count in counts:
        for code in codes[position:count]:
            if code > 0:
                stack.append(code - 1)
            elif -code - 1 in stack:
                del stack[len(stack) - 1 - stack[::-1].index(-code - 1) :]
        position = max(position, count)
        modules.append(stack[-1])
    return modules
