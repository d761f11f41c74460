"""Decides which steps are recorded: warm-up first, then a number of them, then no more.

`Steady` is a window onto the steady state: so many decode steps of each batch size, once they have
settled.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import median

from spark_prof.profiler.batch import DECODE, MIXED, PREFILL, Batch


class RecordingState(Enum):
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
    """Turns of watched and merely timed steps, which together show what watching costs."""

    watched: int = 0  # steps of a turn that are watched; 0 watches all of them
    period: int = 0  # steps of a turn
    position: int = 0

    def next(self) -> Take:
        """What happens to the next step."""
        if not self.watched:
            return Take.WATCH
        position = self.position % self.period
        self.position += 1
        return Take.WATCH if position < self.watched else Take.TIME


WATCHED, TURN = 8, 256
"""Of so many steps in a row, so many are watched, once all kinds of steps have been."""

_ALWAYS_WATCHED = {PREFILL: 8, DECODE: 16, MIXED: 8}
"""So many steps of each kind are watched when they come, whatever the turn."""

_AT_ONCE = 8  # steps that are watched on once one was: to turn costs a millisecond or two


@dataclass
class Sampling:
    """Watches some steps of each kind, and only times most others.

    Where watching slows a step down, times come from the others. A kind is a phase and a batch
    size, sizes up to twice as large taken together.

    Example:
        >>> sampling = Sampling()
        >>> [sampling.next(DECODE, 1).name for _ in range(40)][21:25]
        ['WATCH', 'WATCH', 'TIME', 'TIME']
    """

    position: int = 0
    kinds: Counter[tuple[int, int]] = field(default_factory=Counter)
    left: int = 0  # steps that are watched in any case

    def next(self, phase: int, requests: int) -> Take:
        """What happens to the next step, which is of that phase and decodes so many requests."""
        kind = phase, requests.bit_length()
        turn = self.position % TURN < WATCHED
        self.position += 1
        if self.kinds[kind] < _ALWAYS_WATCHED[phase]:
            self.left = _AT_ONCE
        if not turn and not self.left:
            return Take.TIME
        self.left = max(self.left - 1, 0)
        self.kinds[kind] += 1
        return Take.WATCH


@dataclass
class StepWindow:
    """The steps that a recording wants."""

    steps: int  # to watch, 0 for no limit
    warmup_steps: int = 0  # to let pass first
    decode_only: bool = False  # leave out steps that hold any prefill
    stretches: Stretches = field(default_factory=Stretches)
    passed: int = 0
    recorded: int = 0
    closed: bool = False
    sampling: Sampling | None = None  # takes the place of stretches; timed steps count too

    @property
    def state(self) -> RecordingState:
        """The state of the recording."""
        if self.closed:
            return RecordingState.CLOSED
        if self.recorded:
            return RecordingState.RECORDING
        return RecordingState.WARMING if self.passed else RecordingState.WAITING

    def wants(self, batch: Batch, now_ns: int) -> Take:  # noqa: ARG002 a steady window looks at it
        """What happens to the step that begins at that time; counts it as passed if nothing."""
        if self.closed:
            return Take.SKIP
        if self.passed < self.warmup_steps or (self.decode_only and batch.phase != DECODE):
            self.passed += 1
            return Take.SKIP
        if self.sampling is not None:
            return self.sampling.next(batch.phase, batch.decode_requests)
        return self.stretches.next()

    def counts(self, *, watched: bool) -> bool:
        """Whether such a step is one of those that were asked for."""
        return watched or self.sampling is not None

    def count(self) -> None:
        """Counts one step and closes the window after the last one."""
        self.recorded += 1
        if self.steps and self.recorded >= self.steps:
            self.closed = True


_SAMPLE = 16  # steps whose median is compared with that of as many steps before them

_SETTLED = 0.03  # by how much the two medians may differ

_PATIENCE = 512  # steps after which a batch size is recorded although it never settled


@dataclass
class _Size:
    """How many steps of one batch size have come, and whether their times have settled."""

    stretches: Stretches
    times_ns: deque[int] = field(default_factory=lambda: deque(maxlen=2 * _SAMPLE))
    passed: int = 0
    recorded: int = 0
    settled: bool = False

    def settle(self, time_ns: int | None) -> None:
        """Counts a step, and notes whether the times have settled with it."""
        self.passed += 1
        if time_ns is not None:
            self.times_ns.append(time_ns)
        if len(self.times_ns) == 2 * _SAMPLE:
            times = list(self.times_ns)
            before, after = median(times[:_SAMPLE]), median(times[_SAMPLE:])
            self.settled = abs(after - before) <= _SETTLED * before
        self.settled |= self.passed >= _PATIENCE


class SteadyWindow(StepWindow):
    """So many decode steps of each batch size in the steady state.

    Watched and timed steps take turns for each size anew. It closes after the sizes that were asked
    for; with none it takes what comes and is closed from outside.
    """

    def __init__(self, steps: int, stretches: Stretches, batch_sizes: tuple[int, ...] = ()) -> None:
        super().__init__(steps, decode_only=True, stretches=stretches)
        self._batch_sizes = batch_sizes
        self._sizes = defaultdict[int, _Size](lambda: _Size(replace(stretches)))
        self._latest: tuple[int, int] = (0, 0)

    def wants(self, batch: Batch, now_ns: int) -> Take:
        """What happens to the step; see `StepWindow`."""
        number = batch.decode_requests if batch.phase == DECODE else 0
        (before, began), self._latest = self._latest, (number, now_ns)
        if self.closed or not number or (self._batch_sizes and number not in self._batch_sizes):
            self.passed += 1
            return Take.SKIP
        size = self._sizes[number]
        if size.recorded >= self.steps > 0:
            return Take.SKIP
        if not size.settled:
            size.settle(now_ns - began if before == number else None)
            self.passed += 1
            return Take.SKIP
        return size.stretches.next()

    def count(self) -> None:
        """Counts one watched step of the batch size that was asked for last."""
        self.recorded += 1
        self._sizes[self._latest[0]].recorded += 1
        if self._batch_sizes and all(
            self._sizes[number].recorded >= self.steps > 0 for number in self._batch_sizes
        ):
            self.closed = True


PAUSE_SECONDS = 0.015
"""What writing a piece shall take; it takes longer where other processes want the processor."""

_LOOKED_AT = 3  # pieces; one that the machine was slow for says nothing
_GROWTH = 4  # times as many steps as in the piece before


class PieceLength:
    """The steps after which a piece is written.

    Example:
        >>> length = PieceLength(most=256, fixed_s=0.001)
        >>> length.steps
        1
        >>> length.wrote(1, 0.006)
        >>> length.steps
        2
    """

    def __init__(self, most: int, fixed_s: float | None = None) -> None:
        self._most, self._fixed_s = most, fixed_s
        self._pause_s = max(PAUSE_SECONDS, 2 * (fixed_s or 0.0))
        self._costs: deque[float] = deque(maxlen=_LOOKED_AT)
        self.steps = most if fixed_s is None else 1

    def wrote(self, steps: int, seconds: float) -> None:
        """Takes in how long a piece of so many steps took to write."""
        if self._fixed_s is None or steps < 1:
            return
        self._costs.append((seconds - self._fixed_s) / steps)
        fit = (self._pause_s - self._fixed_s) / max(median(self._costs), 1e-9)
        self.steps = int(max(1, min(fit, self._most, _GROWTH * steps)))
