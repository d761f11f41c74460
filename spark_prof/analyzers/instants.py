"""Who owns an instant: the one rule by which time is attributed to what ran.

A kernel that starts before the one before it on its stream has ended, and outlasts it, waits for it
(programmatic dependent launch): until then the instant is the earlier one's alone, and all times of
the later one begin there (`with_own_starts`). Else an instant of a step's window belongs evenly to
everything that runs in it, whichever step launched that; one in which nothing runs is a launch gap
between the window's first and last kernel, and else the host's. So the parts of a window add up to
its length.

Most kernels lie in one window and overlap nothing: their lengths are added up. For the others two
clocks run. The shared clock advances by 1/n while n kernels run, the lone clock only while one runs
alone: what they show at a kernel's end less what they show at its start is its part of the time,
and the time that it had for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import ascends, at_once, by_blocks
from spark_prof.arrays import Flags, Floats, Int64s

_BLOCK = 1 << 17


def with_own_starts(rows: pd.DataFrame) -> pd.DataFrame:
    """Kernels and copies from when each has its stream for itself, in order of that.

    Args:
        rows: stream, start_ns and end_ns, in order of start, with the index of a new table.

    Returns:
        The rows, `start_ns` being that time. Where it differs for any, they also have `ahead_ns`:
        how much earlier each was seen to start.
    """
    start, end, stream = (
        rows[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "stream")
    )
    ahead = _ahead_in_order(start, end, stream)
    if ahead is None:
        ahead = _ahead(start, np.maximum(end, start), stream)
    if not ahead.any():
        return rows
    moved = rows.assign(start_ns=start + ahead, ahead_ns=ahead)
    if ascends(moved["start_ns"].to_numpy()):
        return moved
    return moved.sort_values("start_ns", kind="stable", ignore_index=True)


def _ahead_in_order(start: Int64s, end: Int64s, stream: Int64s) -> Int64s | None:
    """How long before its own time each starts; None where two of a stream start together."""
    ahead = np.zeros(len(start), np.int64)
    reached: dict[int, int] = {}  # when what a stream has run so far has ended
    began: dict[int, int] = {}
    for at in range(0, len(start), _BLOCK):
        block = slice(at, at + _BLOCK)
        numbers = pd.unique(stream[block]).tolist()
        for number in numbers:
            mine = slice(None) if len(numbers) == 1 else np.flatnonzero(stream[block] == number)
            starts = start[block][mine]
            ends = np.maximum(end[block][mine], starts)
            before = np.append(reached.get(number, starts[0]), ends[:-1])
            np.maximum.accumulate(before, out=before)
            if began.get(number) == starts[0] or (starts[1:] == starts[:-1]).any():
                return None
            reached[number], began[number] = max(int(before[-1]), int(ends[-1])), int(starts[-1])
            # What ended before the other one did not wait: branches of a graph have one stream.
            waits = (ends > before) & (before > starts)
            if waits.any():
                ahead[block][mine] = np.where(waits, before - starts, 0)
    return ahead


def _ahead(start: Int64s, end: Int64s, stream: Int64s) -> Int64s:
    """The same where some start together."""
    # Of two that start together the longer one waits, in whatever order they were written.
    order = np.lexsort((end, start, stream))
    reached = np.empty_like(start)
    for of_stream in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
        reached[of_stream] = np.append(
            start[of_stream[:1]], np.maximum.accumulate(end[of_stream])[:-1]
        )
    return np.where(end > reached, np.maximum(reached - start, 0), 0)


def recorded_starts(rows: pd.DataFrame) -> Int64s:
    """When kernels and copies were seen to start, of rows that `with_own_starts` returned."""
    start = rows["start_ns"].to_numpy(np.int64)
    return start - rows["ahead_ns"].to_numpy(np.int64) if "ahead_ns" in rows else start


@dataclass(frozen=True)
class RunWork:
    """Everything that ran, in order of start."""

    start: Int64s  # ns
    end: Int64s  # ns; one before its start counts as that
    kind: npt.NDArray[np.integer[Any]]  # what work each is, from 0
    kernel: Flags  # whether it is a kernel: a copy does not tell when a step's kernels begin


@dataclass(frozen=True)
class Attributed:
    """Times in ns: one row each window, in the first three one column each kind of work."""

    kernel_time: Floats  # how long the work ran in the window, overlaps counted in full
    attributed: Floats  # its part of the window
    exclusive: Floats  # how long it ran while nothing else did
    between: Floats  # how long nothing ran between the window's first and last kernel
    outside: Floats  # how long nothing ran before the first or after the last


class SharedTime(NamedTuple):
    """The rows that overlap others or run across the edge of a window."""

    rows: Int64s
    opened: Int64s  # where they start and end, on the time line of `moments`
    closed: Int64s
    moments: Int64s
    clock: Floats  # what the shared clock shows at each
    edges: tuple[Int64s, Int64s]  # of the windows, on that line


@dataclass(frozen=True, eq=False)
class OwnedTime:
    """The part of the windows that each row has; what the parts of a kind sum to is `Attributed`.

    Example: of two kernels that run together for 20 ns, each has 10 ns of them.
    """

    length: Int64s  # of each row, ns
    # The window of each row that has all its time for itself and lies in one; of others -1.
    window: npt.NDArray[np.int32]
    shared: SharedTime  # of the rows that have not

    def weighted(self, weights: Floats) -> Floats:
        """The sum over the windows of each row's part, times a weight of each window, in ns."""
        weight = np.append(weights, 0.0)
        sums = by_blocks(
            len(self.length), np.float64, lambda b: self.length[b] * weight[self.window[b]]
        )
        if len(shared := self.shared.rows):
            sums[shared] = self._passed(self.shared.closed, weights)
            sums[shared] -= self._passed(self.shared.opened, weights)
        return sums

    def _passed(self, moment: Int64s, weights: Floats) -> Floats:
        """What a clock shows that advances as much faster in a window as that one weighs."""
        *_, moments, clock, (begin, finish) = self.shared
        begun, finished = (np.interp(edge, moments, clock) for edge in (begin, finish))
        before = np.append(0.0, np.cumsum(weights * (finished - begun)))
        window = np.maximum(np.searchsorted(begin, moment, side="right") - 1, 0)
        inside = np.interp(np.minimum(moment, finish[window]), moments, clock)
        passed: Floats = before[window]
        passed += weights[window] * np.maximum(inside - begun[window], 0.0)
        return passed


def attribute(
    work: RunWork, begin: Int64s, finish: Int64s, kinds: int, idle: Floats | None = None
) -> tuple[Attributed, OwnedTime]:
    """Attributes every instant of some windows, of which none begins before the last one ends.

    The second are the parts of each row.

    Args:
        idle: how long nothing ran in each window; None works it out.
    """
    totals = [np.zeros((len(begin), kinds)) for _ in range(3)]
    between = np.zeros(len(begin))
    window = np.full(len(work.start), -1, np.int32)
    nothing = np.zeros(0, np.int64)
    shares = SharedTime(nothing, nothing, nothing, nothing, np.zeros(0), (nothing, nothing))
    if len(begin) and len(work.start):
        latest = np.maximum.accumulate(np.maximum(work.end, work.start))
        blocks = [slice(at, at + _BLOCK) for at in range(0, len(work.start), _BLOCK)]
        edges = begin, finish
        block_times = at_once(
            *(partial(_block, work, b, latest, edges, kinds, window) for b in blocks)
        )
        for first, window_times, _ in block_times:
            for total in totals:
                total[first : first + len(window_times)] += window_times
        rows = np.concatenate([rows for *_, rows in block_times])
        shares = _add_shared(work, rows, edges, totals)
        between = _between_kernels(work, begin, finish, latest)
    length = np.maximum(work.end - work.start, 0)
    kernel_time, attributed, exclusive = totals
    if idle is None:
        idle = np.maximum((finish - begin).astype(np.float64) - attributed.sum(axis=1), 0)
    between = np.minimum(between, idle)
    times = Attributed(kernel_time, attributed, exclusive, between, idle - between)
    return times, OwnedTime(length, window, shares)


def _block(
    work: RunWork,
    block: slice,
    latest: Int64s,
    windows: tuple[Int64s, Int64s],
    kinds: int,
    window_of: npt.NDArray[np.int32],
) -> tuple[int, Floats, Int64s]:
    """The lengths of the rows of a block that have their time for themselves.

    They are the time of each kind in the block's first window, whose number comes first, and the
    following ones. The last are the rows that overlap others or run across the edge of a window.
    Of the others `window_of` gets the window.
    """
    begin, finish = windows
    start, end = work.start[block], np.maximum(work.end[block], work.start[block])
    window = np.searchsorted(begin, start, side="right") - 1
    inside = (window >= 0) & (start < finish[window])
    following = np.append(begin, np.iinfo(np.int64).max)[window + 1]
    shares = end > np.where(inside, finish[window], following)
    # What a row overlaps is the row before it, or overlaps one itself.
    before = latest[max(block.start - 1, 0) : block.start + len(start) - 1]
    shares[len(start) - len(before) :] |= start[len(start) - len(before) :] < before
    after = work.start[block.start + 1 : block.start + len(start) + 1]
    shares[: len(after)] |= after < latest[block][: len(after)]
    first = max(int(window[0]), 0)
    window_of[block] = np.where(inside & ~shares, window, -1)
    lone = np.flatnonzero(inside & ~shares)
    cell = (window[lone] - first) * kinds + work.kind[block][lone]
    size = (int(window[-1]) + 1 - first) * kinds
    took = (end - start)[lone].astype(np.float64)
    window_times: Floats = np.bincount(cell, weights=took, minlength=max(size, 0)).astype(
        np.float64
    )
    return first, window_times.reshape(-1, kinds), np.flatnonzero(shares) + block.start


def _between_kernels(work: RunWork, begin: Int64s, finish: Int64s, latest: Int64s) -> Floats:
    """How long nothing ran between the first and the last kernel that starts in each window."""
    idle_between = np.zeros(len(begin))
    kernels = np.flatnonzero(work.kernel)
    opens, closes = np.searchsorted(work.start, begin), np.searchsorted(work.start, finish)
    first, last = np.searchsorted(kernels, opens), np.searchsorted(kernels, closes) - 1
    some = np.flatnonzero(last >= first)
    opens, first, last = opens[some], kernels[first[some]], kernels[last[some]]
    # How long nothing ran before each row; before the first one it does not count.
    waited = np.zeros(len(latest) + 1, np.int64)
    idle = np.subtract(work.start[1:], latest[:-1], out=waited[2:])
    np.cumsum(np.maximum(idle, 0, out=idle), out=idle)
    # What reaches into a window from before runs at its very begin.
    running = (opens > 0) & (latest[opens - 1] > begin[some])
    idle_between[some] = waited[last + 1] - waited[np.where(running, opens, first + 1)]
    return idle_between


def _add_shared(
    work: RunWork, rows: Int64s, windows: tuple[Int64s, Int64s], totals: list[Floats]
) -> SharedTime:
    """Adds rows that overlap each other or run across edges of windows, by the two clocks."""
    if not len(rows):
        return SharedTime(rows, rows, rows, rows, np.zeros(0), windows)
    # Near zero a float holds every nanosecond. What lies outside all windows counts to none.
    origin, last = int(windows[0][0]), int(windows[1][-1])
    start = np.clip(work.start[rows], origin, last) - origin
    end = np.maximum(np.clip(work.end[rows], origin, last) - origin, start)
    kinds = work.kind[rows]
    moments, shared, lone = clocks_of(start, end)

    def readings_at(moment: Int64s) -> tuple[npt.NDArray[np.number], Floats, Floats]:
        """The time, and what both clocks show at it."""
        return moment, np.interp(moment, moments, shared), np.interp(moment, moments, lone)

    edges = (windows[0] - origin, windows[1] - origin)
    readings = zip(totals, *map(readings_at, (*edges, start, end)), strict=True)
    for total, begun, finished, opened, closed in readings:
        for kind in np.unique(kinds):
            starts, ends = (np.sort(clock[kinds == kind]) for clock in (opened, closed))
            total[:, kind] += _passed(finished, starts) - _passed(finished, ends)
            total[:, kind] -= _passed(begun, starts) - _passed(begun, ends)
    return SharedTime(rows, start, end, moments, shared, edges)


def clocks_of(start: Int64s, end: Int64s) -> tuple[Int64s, Floats, Floats]:
    """Every start and end in order, and what the shared and the lone clock show at each, in ns."""
    ended = np.sort(end)
    # Both are in order, so that a start's place in all moments is its own among both.
    opens = np.arange(len(start)) + np.searchsorted(ended, start, side="right")
    running = np.full(2 * len(start), -1)
    running[opens] = 1
    moments = np.empty(len(running), np.int64)
    moments[opens], moments[running < 0] = start, ended
    during = np.cumsum(running)[:-1]
    length = np.diff(moments).astype(np.float64)
    shared = np.divide(length, during, out=np.zeros_like(length), where=during > 0)
    lone = np.where(during == 1, length, 0.0)
    return moments, np.append(0.0, np.cumsum(shared)), np.append(0.0, np.cumsum(lone))


def _passed(at: npt.NDArray[np.number], since: npt.NDArray[np.number]) -> Floats:
    """How much has passed, at readings of a clock, since each of others, which ascend: the sum."""
    sums = np.append(0.0, np.cumsum(since, dtype=np.float64))
    earlier = np.searchsorted(since, at, side="right")
    passed: Floats = at * earlier.astype(np.float64) - sums[earlier]
    return passed
