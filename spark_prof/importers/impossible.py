"""Leaves out the records of a foreign trace that cannot be, and says how many and why.

A record is impossible where it ends before it starts, where an hour lies between it and all others,
where it started long before its own launch or long after what was launched behind it, where it is
there twice, and where it outlasts several that ran after it on its stream (`overruns`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from spark_prof.arrays import Flags
from spark_prof.importers.impossible_times import (
    APART_NS,
    CHECKS,
    TWICE,
    UNREADABLE,
    GpuWork,
    Span,
    inside,
    largest,
    repeated,
    within,
)
from spark_prof.importers.overruns import times_of
from spark_prof.traces.foreign import IMPOSSIBLE, Window

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
