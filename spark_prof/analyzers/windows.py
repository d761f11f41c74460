"""Where each step begins and ends on the device's time line, and which steps have times at all.

A step begins when its scheduler begins to choose the batch, but not before the device has finished
the step before it: with asynchronous scheduling the host runs ahead. It ends where the next one
begins, or before that with the scheduler's update when nothing was left to do; the last one with
its update or its last kernel, whichever is later.

Clocks are set while engines run. A worker runs its steps one after the other, a kernel starts after
its step did, and the scheduler's update of a step comes after the kernels of the rank that it waits
for. Where that does not hold, a clock was set back or the clocks of host and GPU differ. Time
before and after such a jump has no common line, so that only the longest run of steps between jumps
is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.rank_layout import layout_of
from spark_prof.arrays import Flags, Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import empty_table

_OVERLAP_NS = 1_000_000  # steps that overlap by less are left alone: the error is as small

_APART_NS = 5_000_000
"""How far the clocks of host and GPU may be apart; sound ones show no early or late kernel."""

_LATE_TIMES = 4
_STALL_NS = 500_000_000
_STALL_TIMES = 50
"""A step of this length, as many times the median of its phase, is told; one of a minute counts
nowhere."""
_ABSURD_NS = 60_000_000_000


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """The kernels of each step."""

    first: Int64s  # first start, 0 without any
    last: Int64s  # last end, 0 without any
    negative: Flags  # whether one ends before it starts


def _believed(
    steps: pd.DataFrame, device: _OnDevice, *, one_clock: bool, awaited: bool
) -> tuple[Flags, Flags, tuple[str, ...]]:
    """Judges the times of steps, in order.

    Args:
        one_clock: whether the times come out of a trace, whose tool has put all on one clock.
        awaited: whether the scheduler waits for this rank; kernels of the others may run on after
            its update.

    Returns:
        Of each step whether its times can be believed; of each whether one before it was left out,
        so that it follows none; and what was left out and why, one line each.
    """
    start, end = (steps[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    count = len(steps)
    has_kernels = device.last > 0
    bad = (end < start) | device.negative
    back = np.zeros(count, np.int64)
    overlap = end[:-1] - start[1:]
    overlap[overlap <= _OVERLAP_NS] = 0
    back[1:] = np.maximum.reduce([start[:-1] - start[1:], overlap, back[1:]])
    apart = np.zeros(count, np.int64)
    if not one_clock:
        update = steps["update_ns"].fillna(np.iinfo(np.int64).max).to_numpy(np.int64)
        early = np.where(has_kernels, start - device.first, 0)
        late = np.where(has_kernels & awaited, np.maximum(device.last - update, 0), 0)
        apart = np.maximum(early, late)
        apart[apart <= _APART_NS] = 0
    length, stalled = _long(steps, start)
    forward = stalled & (length > _ABSURD_NS)
    bad |= (apart > 0) | forward
    # Nothing tells when the two steps before a jump, or before one that is left out, were over: the
    # scheduler's update of a step may come while the next one runs.
    before = np.append(bad[1:] | (back[1:] > 0), False)[:count]
    before |= np.append(before[1:], False)[:count]
    usable = _longest_run(~(bad | before), back > 0)
    usable &= ~_ambiguous(steps, start, end, usable, back > 0)
    breaks = np.append(False, ~usable[:-1]) if count else np.zeros(0, bool)
    numbers, notes = steps.index.to_numpy(), []
    backward = end < start, device.negative
    forward_ns = np.where(forward, length, 0)
    if causes := list(_causes(numbers, back, backward, apart, forward_ns)):
        notes.append(
            f"lost: {'; '.join(causes)}. {count - np.count_nonzero(usable)} of {count} steps are "
            "left out of all figures; record again while nothing sets the clock."
        )
    stalls = np.where(stalled & ~forward & usable, length, 0)
    if stalls.any():
        notes.append(
            f"A step of {_STALL_TIMES} times the median of its phase or more took "
            f"{_span(int(stalls.max()))} (step {numbers[stalls.argmax()]}): the engine stalled, or "
            "the clock was set forward. Means that count it contain it, medians do not."
        )
    return usable, breaks, tuple(notes)


def _causes(
    numbers: Int64s, back: Int64s, backward: tuple[Flags, Flags], apart: Int64s, forward: Int64s
) -> Iterator[str]:
    """Why steps are not believed: by how many ns each was set back, apart or set forward."""
    if (back > 0).any():
        yield f"the clock was set back {_at(back, numbers)}"
    if wrong := np.count_nonzero(backward[0]):
        yield f"steps that end before they begin: {wrong}"
    if wrong := np.count_nonzero(backward[1]):
        yield f"steps with kernels that end before they begin: {wrong}"
    if wrong := np.count_nonzero(apart):
        yield (
            f"the clocks of host and GPU are up to {_span(int(apart.max()))} apart in {wrong} of "
            "the steps"
        )
    if forward.any():
        yield f"the clock was set forward, or the engine stalled, {_at(forward, numbers, 'in')}"


def _on_device(steps: pd.DataFrame, kernels: pd.DataFrame) -> _OnDevice:
    count = len(steps)
    place = positions(steps.index.to_numpy(), kernels["step"].to_numpy())
    begins, ends = (kernels[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    # What belongs to no step of these has its place behind the last one.
    first = np.full(count + 1, np.iinfo(np.int64).max)
    last = np.zeros(count + 1, np.int64)
    np.minimum.at(first, place, begins)
    np.maximum.at(last, place, ends)
    negative = np.zeros(count + 1, bool)
    negative[place[ends < begins]] = True
    return _OnDevice(np.where(last > 0, first, 0)[:-1], last[:-1], negative[:-1])


def _long(steps: pd.DataFrame, start: Int64s) -> tuple[Int64s, Flags]:
    """The time from each step to the next one, and whether that is many times what is usual."""
    count = len(steps)
    length = np.append(np.diff(start), 0)[:count]
    piece, number = steps["piece"].to_numpy(), steps.index.to_numpy()
    follows = np.append((piece[1:] == piece[:-1]) & (np.diff(number) == 1), False)[:count]
    # Without work left the engine may wait for the next request as long as it likes.
    follows &= steps["unfinished"].fillna(0).to_numpy(np.float64) > 0
    usual_lengths = pd.Series(np.where(follows & (length > 0), length, np.nan))
    usual = (
        usual_lengths.groupby(steps["phase"].astype(str).to_numpy()).transform("median").to_numpy()
    )
    long = length > np.maximum(_STALL_NS, _STALL_TIMES * usual)
    # Of a phase with few steps the long one may be the median.
    long |= length > max(_ABSURD_NS, _STALL_TIMES * float(usual_lengths.median()))
    return length, follows & long


def _longest_run(sound: Flags, jumps: Flags) -> Flags:
    """The sound steps of the run between jumps that has most of them."""
    run = np.cumsum(jumps)
    return np.asarray(sound & (run == np.bincount(run, weights=sound, minlength=1).argmax()))


def _ambiguous(
    steps: pd.DataFrame, start: Int64s, end: Int64s, usable: Flags, jumps: Flags
) -> Flags:
    """The kept steps at whose times others of their piece ran before or after a jump.

    Within a piece a kernel is given to its step by the time of its launch.
    """
    ambiguous = np.zeros(len(start), bool)
    run, piece = np.cumsum(jumps), steps["piece"].to_numpy()
    other = ~np.isin(run, run[usable])
    jumped = np.unique(piece[jumps])
    for number in jumped:
        inside = np.flatnonzero(usable & (piece == number))
        beside = np.flatnonzero(other & (piece == number))
        beside = beside[np.argsort(start[beside], kind="stable")]
        latest = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[beside]))
        ambiguous[inside] = (
            latest[np.searchsorted(start[beside], end[inside], side="right")] >= start[inside]
        )
    return ambiguous


def _at(size: Int64s, numbers: Int64s, where: str = "before") -> str:
    """By how much and at which step; the largest, where there are several."""
    count, span = np.count_nonzero(size), _span(int(size.max()))
    amount = f"by {span} or more" if where == "before" else f"for {span}"
    rest = f", and at {count - 1} other steps" if count > 1 else ""
    return f"{amount} {where} step {numbers[size.argmax()]}{rest}"


def _span(ns: int) -> str:
    seconds = ns / 1e9
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


_PAUSE_NS = 50_000_000
"""Without the scheduler's record, steps further apart than this had the engine idle between."""


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a rank's steps, and which steps have none."""

    steps: pd.DataFrame
    """The watched rows of the `steps` table whose times can be believed, in order and indexed by
    step, with `begin_ns` and `finish_ns` of the step's window, `engine_ns` (the iteration's length
    by the engine's own clock), `output_tokens` and `output_requests`, which are NaN where unknown.
    """
    left_out: Int64s  # numbers of the watched steps whose times cannot be believed
    notes: tuple[str, ...]  # why, one line each


def timed_windows(bundle: Bundle, rank: int, kernels: pd.DataFrame) -> Windows:
    """The windows of a rank's recorded steps; its kernels have `step`, `start_ns`, `end_ns`."""
    steps = bundle.frame("steps", rank).sort_values("step").set_index("step", drop=False)
    if not steps.index.is_unique:
        raise CommandError(
            f"{bundle.label} has two steps of one number in rank {rank}; it is damaged"
        )
    steps = steps[steps["watched"]]
    steps = steps.join(engine_rows(bundle, steps))
    device = _on_device(steps, kernels)
    usable, breaks = np.ones(len(steps), bool), np.zeros(len(steps), bool)
    notes: tuple[str, ...] = ()
    # Sums alone have no times to judge.
    if not bundle.meta.settings.get("summed"):
        awaited = rank in layout_of(bundle).output_ranks
        usable, breaks, notes = _believed(steps, device, one_clock=bundle.imported, awaited=awaited)
    left_out = steps.index.to_numpy(np.int64)[~usable]
    if len(left_out) == len(steps) > 0:
        raise CommandError(f"{bundle.label} has no step whose times can be believed: {notes[0]}")
    steps, breaks = steps[usable], breaks[usable]
    scheduled = steps["schedule_ns"].fillna(steps["start_ns"]).to_numpy(np.int64)
    updated = steps["update_ns"].fillna(steps["end_ns"]).to_numpy(np.int64)

    piece = steps["piece"].to_numpy()
    same_piece = np.append(False, piece[1:] == piece[:-1])[: len(steps)] & ~breaks
    had_work = steps["unfinished"].fillna(0).to_numpy() > 0
    apart = steps["start_ns"].to_numpy()[1:] - steps["end_ns"].to_numpy()[:-1]
    has_record = steps["unfinished"].notna().to_numpy()
    busy = np.where(has_record[:-1], had_work[:-1], apart < _PAUSE_NS)
    follows = same_piece & np.append(False, busy.astype(bool))
    # Between two rows others may have run that were only timed, or not recorded at all.
    follows[1:] &= np.diff(steps.index.to_numpy(np.int64)) == 1
    apart_by = np.diff(steps["place"].to_numpy(np.float64))
    follows[1:] &= np.isnan(apart_by) | (apart_by == 1)

    # A step without kernels ends on the device when the one before it does.
    device_done = np.maximum.accumulate(device.last[usable])
    before = np.append(0, device_done[:-1])
    # The first step of a piece may wait for a flush, or for the recording to get ready: that is no
    # time of the step, all the rest since it was scheduled is.
    start, paused = (steps[name].to_numpy(np.int64) for name in ("start_ns", "paused_ns"))
    ready = np.minimum(np.maximum(scheduled, before) + paused, start)
    alone = np.where(same_piece, scheduled, np.where(paused > 0, ready, start))
    begin = np.where(follows, np.maximum(scheduled, before), alone)
    begin = np.maximum.accumulate(begin)
    finish = np.maximum.reduce([updated, device_done, begin])
    finish[:-1] = np.where(follows[1:], begin[1:], np.minimum(finish[:-1], begin[1:]))

    # The update of a piece's last step may wait until the recording is written: it then follows the
    # last kernel much later than others do, and these tell how long that takes.
    tails = (begin[1:] - device_done[:-1])[follows[1:]]
    longest = int(tails.max(initial=0))
    late = ~np.append(follows[1:], False)[: len(steps)] & bool(len(tails))
    late &= finish - device_done > max(_LATE_TIMES * longest, _OVERLAP_NS)
    finish[late] = updated[late] = np.maximum(device_done + longest, begin)[late]

    period = np.where(follows, updated - np.append(0, updated[:-1]), updated - alone)
    engine = np.where(steps["update_ns"].notna(), period.astype(np.float64), np.nan)
    windows = steps.assign(begin_ns=begin, finish_ns=finish, engine_ns=engine)
    return Windows(windows, left_out, notes)


_FAR = 1 << 40  # places between two replicas, more than any has batches


def engine_rows(bundle: Bundle, steps: pd.DataFrame) -> pd.DataFrame:
    """The scheduler's record of each step, indexed by step."""
    times = ["schedule_ns", "update_ns"]
    counts = ["output_tokens", "output_requests", "unfinished", "place"]
    records = [bundle.frame("engine", r) for r in _replicas(bundle)]
    # Of each replica the batches in order, whatever clocks say; nobody may have recorded some.
    numbered = [
        batches.assign(place=np.arange(len(batches)) + n * _FAR)
        for n, batches in enumerate(records)
    ]
    engine = pd.concat([empty_table("engine").to_pandas().assign(place=0.0), *numbered])
    engine = engine[engine["update_ns"] > 0]
    pairs = steps[["step", "key", "start_ns"]].reset_index(drop=True).merge(engine, on="key")
    pairs = pairs[pairs["schedule_ns"] <= pairs["start_ns"]]
    # The same batch can come back after a preemption: take the latest before the step.
    pairs = pairs.sort_values("schedule_ns").drop_duplicates("step", keep="last")
    # Nullable integers keep every digit of the times beside rows that have none.
    types = dict.fromkeys(times, "Int64") | dict.fromkeys(counts, "float64")
    return pairs.set_index("step")[times + counts].astype(types).reindex(steps.index)


def _replicas(bundle: Bundle) -> list[int]:
    names = [name for name in bundle.meta.tables if name.startswith("engine-rank")]
    return [int(n.removeprefix("engine-rank").removesuffix(".parquet")) for n in names]
