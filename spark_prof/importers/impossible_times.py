"""Which records of a window have times that cannot be, a check a cause.

Each check looks at what the ones before it left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import ascends
from spark_prof.arrays import Flags, Int64s
from spark_prof.importers.overruns import overruns, rows_of_streams, times_of
from spark_prof.traces.foreign import IMPOSSIBLE, Window

APART_NS = 3_600_000_000_000  # an hour: no recording pauses so long
_EARLY_NS = 5_000_000  # clocks of host and GPU agree better than this
_LATE_NS = 1_000_000_000  # later than something launched after it on its stream
_MOST_APART = 0.02  # of all records that contradict where a clock was set
_FEWEST_OF_A_CLOCK = 10
_NEVER = 1 << 61
_MOST_LATE = 0.1  # of all records; where more are late, streams are no queues

_SAME = ("name", "kind", "end_ns", "device", "stream", "correlation", "graph_node")

NEGATIVE = "with an end before the start"
APART = "more than an hour from all others"
EARLY = "with a start before the launch"
LATE = "with a start long after what was launched behind on the same stream"
CLOCK = "from before or after a clock was set"
TWICE = "that the trace has twice"
OVERRUN = "with a duration over several that ran later on the same stream"
UNREADABLE = "without a usable name, time or duration"
"""Why records are left out; what follows their number in a sentence."""


Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class GpuWork:
    """The GPU work of a window, and what is known of its times."""

    window: Window
    start: Int64s
    end: Int64s
    sound: Flags  # what nothing was found against so far
    host: Span | None  # when the host's first and last record began; None without any
    amd: bool

    @property
    def none(self) -> Flags:
        """No row."""
        return np.zeros(len(self.start), bool)


def within(start: Int64s, end: Int64s, span: Span, beyond_ns: int = APART_NS) -> Flags:
    """Which records begin within a span and end at most so much after it, and after their begin."""
    whole: Flags = (end >= start) & inside(start, span) & (end <= span[1] + beyond_ns)
    return whole


def inside(start: Int64s, span: Span) -> Flags:
    """Which records begin within a span."""
    begins_inside: Flags = (start >= span[0]) & (start <= span[1])
    return begins_inside


def largest(start: Int64s, near: Span | None) -> Span | None:
    """First and last of the most starts between which no hour lies; rather of those `near`."""
    if not len(start):
        return None
    ordered = start if ascends(start) else np.sort(start)
    cuts = np.flatnonzero(np.diff(ordered) > APART_NS) + 1
    first, behind = np.append(0, cuts), np.append(cuts, len(ordered))
    size = behind - first
    begins, ends = ordered[first], ordered[behind - 1]
    if near is not None:
        beside = (begins <= near[1] + APART_NS) & (ends >= near[0] - APART_NS)
        size = np.where(beside, size + len(ordered), size)
    most = int(size.argmax())
    return int(begins[most]), int(ends[most])


def repeated(frame: pd.DataFrame, columns: tuple[str, ...]) -> Flags:
    """Rows that are there already, the same in everything; those without a duration may be so."""
    start, end = times_of(frame)
    if ascends(start):
        beside = np.append(False, start[1:] == start[:-1])[: len(start)]
        same = beside | np.append(beside[1:], False)[: len(start)]
    else:
        same = pd.Series(start).duplicated(keep=False).to_numpy()
    same = same & (end > start)
    duplicates = np.zeros(len(frame), bool)
    if same.any():
        rows = frame.loc[same, ["start_ns", *columns]]
        duplicates[same] = rows.duplicated().to_numpy()
    return duplicates


def _negative(work: GpuWork) -> Flags:
    return np.asarray(work.end < work.start)


def _apart(work: GpuWork) -> Flags:
    span = largest(work.start[work.sound], work.host)
    return work.none if span is None else ~within(work.start, work.end, span)


def _early(work: GpuWork) -> Flags:
    """What started before its launch and before anything that the host did.

    A number of a launch may be used again, and clocks of whole traces may disagree.
    """
    launch, host = work.window.launch_ns, work.host
    launched = work.sound & (launch >= 0)
    if host is None or not launched.any():
        return work.none
    waited = work.start - launch
    usual = min(0, int(np.quantile(waited[launched], 0.1)))
    least = usual - _EARLY_NS
    return np.asarray(launched & (waited < least) & (work.start < host[0] + least))


def _late(work: GpuWork) -> Flags:
    """What started long after work that was launched behind it on its stream."""
    launch, late = work.window.launch_ns, work.none
    if work.amd:
        return late
    launched = np.flatnonzero(work.sound & (launch >= 0))
    for rows in rows_of_streams(work.window.trace.gpu, launched):
        order = rows[np.argsort(launch[rows], kind="stable")]
        # The earliest start of what was launched behind each, strictly later.
        least = np.minimum.accumulate(work.start[order][::-1])[::-1]
        behind = np.searchsorted(launch[order], launch[order], side="right")
        late[order] = work.start[order] - np.append(least, _NEVER)[behind] > _LATE_NS
    few = late.sum() <= max(1, _MOST_LATE * work.sound.sum())
    return late if few else work.none


def _of_another_clock(work: GpuWork) -> Flags:
    """The smaller part of the work where before or after some launch all begins before its launch.

    There the clock of the GPU, or the host's, was set: between the parts no time is known.
    """
    launch, apart = work.window.launch_ns, work.none
    rows = np.flatnonzero(work.sound & (launch >= 0))
    order = rows[np.argsort(launch[rows], kind="stable")]
    early = work.start[order] < launch[order] - _EARLY_NS
    if early.all() or not early.any():
        return apart
    # How many rows contradict a cut behind each row, after which all are early; or before which.
    before, behind = np.cumsum(early), np.cumsum(~early[::-1])[::-1]
    wrong = before[:-1] + behind[1:]
    for contradicting in (wrong, len(order) - wrong):
        cut = int(contradicting.argmin())
        smaller = min(order[: cut + 1], order[cut + 1 :], key=len)
        few = contradicting[cut] <= _MOST_APART * len(order)
        if few and len(smaller) >= _FEWEST_OF_A_CLOCK:
            apart[smaller] = True
            return apart
    return apart


def _twice(work: GpuWork) -> Flags:
    return repeated(work.window.trace.gpu, _SAME)


CHECKS: tuple[tuple[str, Callable[[GpuWork], Flags]], ...] = (
    (NEGATIVE, _negative),
    (APART, _apart),
    (EARLY, _early),
    (LATE, _late),
    (CLOCK, _of_another_clock),
    (TWICE, _twice),
    (OVERRUN, lambda work: overruns(work.window, work.sound, amd=work.amd)),
)


_BEYOND_NS = 24 * APART_NS  # a range may go on in later windows of a trace
_SAME_CALL = ("name", "end_ns", "thread", "correlation")


@dataclass
class LeftOutRecords:
    """How many records of a process were left out, and how many there were."""

    records: int = 0  # kernels, copies and memsets that the trace has
    why: Counter[str] = field(default_factory=Counter)  # those left out by cause
    calls: int = 0  # API calls, ranges and operators that were left out

    @property
    def of_gpu(self) -> int:
        """How many kernels, copies and memsets were left out."""
        return sum(self.why.values())

    @property
    def most(self) -> bool:
        """Whether most records are impossible; one that is there twice is right once."""
        return 2 * (self.of_gpu - self.why[TWICE]) > self.records

    def lines(self) -> list[str]:
        """What to say of it, none where nothing was left out."""
        lines = []
        if self.of_gpu:
            causes = "; ".join(f"{count:,} {cause}" for cause, count in self.why.items() if count)
            percent = 100 * self.of_gpu / self.records
            share = f"{percent:.1f} %" if percent >= 0.1 else "under 0.1 %"
            lines.append(
                f"{IMPOSSIBLE} {self.of_gpu:,} of {self.records:,} kernels and copies ({share}) "
                f"left out: {causes}"
            )
        if self.calls:
            lines.append(
                f"{IMPOSSIBLE} {self.calls:,} API calls, ranges and operators left out: their "
                "times cannot be, or they are there twice"
            )
        return lines


def without_impossible(window: Window, left_out: LeftOutRecords, *, amd: bool) -> Window:
    """The window without records that cannot be, which are counted in `left_out`."""
    left_out.records += len(window.trace.gpu) + window.trace.unreadable
    if window.trace.unreadable:
        left_out.why[UNREADABLE] += window.trace.unreadable
    window, host = _sound_calls(window, left_out)
    gpu = window.trace.gpu
    if gpu.empty:
        return window
    sound = np.ones(len(gpu), bool)
    for cause, broken in CHECKS:
        now = broken(GpuWork(window, *times_of(gpu), sound, host, amd)) & sound
        if count := int(now.sum()):
            left_out.why[cause] += count
            sound = sound & ~now
    return window if sound.all() else _of_rows(window, sound)


def _of_rows(window: Window, chosen: Flags) -> Window:
    trace = replace(window.trace, gpu=window.trace.gpu[chosen].reset_index(drop=True))
    rows = {name: getattr(window, name)[chosen] for name in ("launch_ns", "thread", "scope")}
    return replace(window, trace=trace, **rows)


def _sound_calls(window: Window, left_out: LeftOutRecords) -> tuple[Window, Span | None]:
    """The window whose calls, ranges and operators have times that can be, and their span."""
    trace = window.trace
    frames = {
        name: getattr(trace, name) for name in ("launches", "operators", "markers", "overhead")
    }
    timed = [times_of(frame) for frame in frames.values() if len(frame)]
    if not timed:
        return window, None
    start, end = (np.concatenate(column) for column in zip(*timed, strict=True))
    host = largest(start[end >= start], None)
    if host is None:
        return window, None
    changed = {}
    for name, frame in frames.items():
        if frame.empty:
            continue
        sound = within(*times_of(frame), host, _BEYOND_NS)
        if name == "launches":
            sound &= ~repeated(frame, _SAME_CALL)
        if not sound.all():
            left_out.calls += int((~sound).sum())
            changed[name] = frame[sound].reset_index(drop=True)
    launch = window.launch_ns
    unknown = (launch >= 0) & ~inside(launch, host)
    calls = window.calls
    if len(calls):
        calls = calls[within(*times_of(calls), host, _BEYOND_NS)]
    return (
        replace(
            window,
            trace=replace(trace, **changed),
            calls=calls,
            launch_ns=np.where(unknown, -1, launch),
        ),
        host,
    )
