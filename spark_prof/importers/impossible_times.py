"""Which records of a window have times that cannot be, a check a cause.

Each check looks at what the ones before it left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import ascends
from spark_prof.arrays import Flags, Int64s
from spark_prof.importers.overruns import overruns, rows_of_streams, times_of
from spark_prof.traces.foreign import Window

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
    """What begins within a span and ends at most so much after it, and after its begin."""
    whole: Flags = (end >= start) & inside(start, span) & (end <= span[1] + beyond_ns)
    return whole


def inside(start: Int64s, span: Span) -> Flags:
    """What begins within a span."""
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
