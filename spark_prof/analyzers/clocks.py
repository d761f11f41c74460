"""Which steps of a recording have times that can be believed: clocks are set while engines run.

A worker runs its steps one after the other, a kernel starts after its step did, and the scheduler's
update of a step comes after the kernels of the rank that it waits for. Where that does not hold, a
clock was set back or the clocks of host and GPU differ. Time before and after such a jump has no
common line, so that only the longest run of steps between jumps is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import positions

Flags = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

_OVERLAP_NS = 1_000_000
"""Steps that overlap by less are left alone: the error is as small."""

_APART_NS = 5_000_000
"""How far the clocks of host and GPU may be apart; sound ones show no early or late kernel."""

_STALL_NS = 500_000_000
_STALL_TIMES = 50
"""A step of this length, as many times the median of its phase, is told; one of a minute counts
nowhere."""
_ABSURD_NS = 60_000_000_000

_MOST_PIECES = 100
"""Pieces within which a clock was set that are looked at; of more all steps are left out."""


@dataclass(frozen=True, eq=False)
class Believed:
    """The steps whose times can be believed.

    Attributes:
        kept: of each step whether it can.
        breaks: of each step whether one before it was left out, so that it follows none.
        notes: what was left out and why, one line each; empty where all is sound.
    """

    kept: Flags
    breaks: Flags
    notes: tuple[str, ...] = ()


def believed_steps(
    steps: pd.DataFrame, kernels: pd.DataFrame, *, one_clock: bool, awaited: bool = True
) -> Believed:
    """Judges the times of steps.

    Args:
        steps: phase, start_ns, end_ns, piece, and update_ns and unfinished, both may be missing
            values; in order of their numbers, indexed by them.
        kernels: step, end_ns and, where it is known, start_ns.
        one_clock: whether the times come out of a trace, whose tool has put all on one clock.
        awaited: whether the scheduler waits for this rank; kernels of the others may run on after
            its update.
    """
    start, end = (steps[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    count = len(steps)
    first, last, negative = _on_device(steps, kernels)
    ran = last > 0
    bad = (end < start) | negative
    back = np.zeros(count, np.int64)
    overlap = end[:-1] - start[1:]
    back[1:] = np.maximum(start[:-1] - start[1:], np.where(overlap > _OVERLAP_NS, overlap, 0))
    back = np.maximum(back, 0)
    apart = np.zeros(count, np.int64)
    if not one_clock:
        update = steps["update_ns"].astype("Int64").fillna(np.iinfo(np.int64).max)
        early = np.where(ran, start - first, 0)
        late = np.where(ran & awaited, last - np.minimum(update.to_numpy(np.int64), last), 0)
        apart = np.maximum(early, late)
        apart[apart <= _APART_NS] = 0
    length, stalled = _long(steps, start)
    forward = stalled & (length > _ABSURD_NS)
    bad |= (apart > 0) | forward
    # Nothing tells when the two steps before a jump, or before one that is left out, were over: the
    # scheduler's update of a step may come while the next one runs.
    before = np.append(bad[1:] | (back[1:] > 0), False)[:count]
    before |= np.append(before[1:], False)[:count]
    kept = _longest_run(~(bad | before), back > 0)
    kept &= ~_ambiguous(steps, start, end, kept, back > 0)
    breaks = np.append(False, ~kept[:-1]) if count else np.zeros(0, bool)
    numbers = steps.index.to_numpy()

    def notes() -> Iterator[str]:
        causes = []
        if (back > 0).any():
            causes.append(f"the clock was set back {_at(back, numbers)}")
        if (bad & (end < start)).any():
            causes.append(f"steps that end before they begin: {np.count_nonzero(end < start)}")
        if negative.any():
            wrong = np.count_nonzero(negative)
            causes.append(f"steps with kernels that end before they begin: {wrong}")
        if (apart > 0).any():
            causes.append(
                f"the clocks of host and GPU are up to {_span(int(apart.max()))} apart in "
                f"{np.count_nonzero(apart)} of the steps"
            )
        if forward.any():
            causes.append(
                f"the clock was set forward, or the engine stalled, "
                f"{_at(np.where(forward, length, 0), numbers, 'in')}"
            )
        if causes:
            yield (
                f"lost: {'; '.join(causes)}. {count - np.count_nonzero(kept)} of {count} steps are "
                "left out of all figures; record again while nothing sets the clock."
            )
        told = np.where(stalled & ~forward & kept, length, 0)
        if told.any():
            yield (
                f"A step of {_STALL_TIMES} times the median of its phase or more took "
                f"{_span(int(told.max()))} (step {numbers[told.argmax()]}): the engine stalled, or "
                "the clock was set forward. Means contain it, medians do not."
            )

    return Believed(kept, breaks, tuple(notes()))


def _on_device(steps: pd.DataFrame, kernels: pd.DataFrame) -> tuple[Int64s, Int64s, Flags]:
    """First start and last end of each step's kernels, 0 without any; whether one ends early."""
    count = len(steps)
    place = positions(steps.index.to_numpy(), kernels["step"].to_numpy())
    ends = kernels["end_ns"].to_numpy(np.int64)
    begins = kernels["start_ns"].to_numpy(np.int64) if "start_ns" in kernels else ends
    # What belongs to no step of these has its place behind the last one.
    first = np.full(count + 1, np.iinfo(np.int64).max)
    last = np.zeros(count + 1, np.int64)
    np.minimum.at(first, place, begins)
    np.maximum.at(last, place, ends)
    negative = np.zeros(count + 1, bool)
    negative[place[ends < begins]] = True
    return np.where(last > 0, first, 0)[:-1], last[:-1], negative[:-1]


def _long(steps: pd.DataFrame, start: Int64s) -> tuple[Int64s, Flags]:
    """The time from each step to the next one, and whether that is many times what is usual."""
    count = len(steps)
    length = np.append(np.diff(start), 0)[:count]
    piece, number = steps["piece"].to_numpy(), steps.index.to_numpy()
    follows = np.append((piece[1:] == piece[:-1]) & (np.diff(number) == 1), False)[:count]
    # Without work left the engine may wait for the next request as long as it likes.
    follows &= steps["unfinished"].fillna(0).to_numpy(np.float64) > 0
    known = pd.Series(np.where(follows & (length > 0), length, np.nan))
    usual = known.groupby(steps["phase"].astype(str).to_numpy()).transform("median").to_numpy()
    long = length > np.maximum(_STALL_NS, _STALL_TIMES * usual)
    # Of a phase with few steps the long one may be the median.
    long |= length > max(_ABSURD_NS, _STALL_TIMES * float(known.median()))
    return length, follows & long


def _longest_run(sound: Flags, jumps: Flags) -> Flags:
    """The sound steps of the run between jumps that has most of them."""
    run = np.cumsum(jumps)
    if not len(run):
        return sound
    number = np.bincount(run, weights=sound)
    return np.asarray(sound & (run == int(number.argmax())))


def _ambiguous(steps: pd.DataFrame, start: Int64s, end: Int64s, kept: Flags, jumps: Flags) -> Flags:
    """The kept steps at whose times others of their piece ran before or after a jump.

    Within a piece a kernel is given to its step by the time of its launch.
    """
    found = np.zeros(len(start), bool)
    run, piece = np.cumsum(jumps), steps["piece"].to_numpy()
    other = ~np.isin(run, run[kept])
    jumped = np.unique(piece[jumps])
    if len(jumped) > _MOST_PIECES:
        return np.asarray(np.isin(piece, jumped))
    for each in jumped:
        inside = np.flatnonzero(kept & (piece == each))
        beside = np.flatnonzero(other & (piece == each))
        beside = beside[np.argsort(start[beside], kind="stable")]
        latest = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[beside]))
        found[inside] = (
            latest[np.searchsorted(start[beside], end[inside], side="right")] >= start[inside]
        )
    return found


def _at(size: Int64s, numbers: Int64s, where: str = "before") -> str:
    """By how much and at which step; the largest, where there are several."""
    found = np.flatnonzero(size)
    most = int(found[size[found].argmax()])
    span = _span(int(size[most]))
    what = f"by {span} or more" if where == "before" else f"for {span}"
    more = f", and at {len(found) - 1} other steps" if len(found) > 1 else ""
    return f"{what} {where} step {numbers[most]}{more}"


def _span(ns: int) -> str:
    seconds = ns / 1e9
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
