"""Charges every instant of a step's window to what ran in it, or to a gap.

What counts is when something ran, not which step launched it: so the parts of a window add up to
its length. Most kernels lie in one window and overlap nothing, and their lengths are added up; the
others go through the clocks of `sharing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.blocks import at_once
from spark_prof.analyzers.token_ledger.sharing import Clocks, clocks_of

__all__ = ["Charges", "Work", "charge"]

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_BLOCK = 1 << 17


@dataclass(frozen=True)
class Work:
    """Everything that ran, in order of start.

    Attributes:
        start: ns.
        end: ns, none before its start.
        kind: what work each is, from 0.
        kernel: whether it is a kernel: a copy does not tell when a step's kernels begin.
    """

    start: Int64s
    end: Int64s
    kind: npt.NDArray[np.integer[Any]]
    kernel: Flags


@dataclass(frozen=True)
class Charges:
    """Times in ns: one row each window, in the first three one column each kind of work.

    Attributes:
        summed: how long the work ran in the window.
        charged: its part of the window.
        alone: how long it ran while nothing else did.
        between: how long nothing ran between the window's first and last kernel.
        outside: how long nothing ran before the first or after the last.
    """

    summed: Floats
    charged: Floats
    alone: Floats
    between: Floats
    outside: Floats


def charge(work: Work, begin: Int64s, finish: Int64s, kinds: int) -> Charges:
    """The charges of windows.

    Args:
        work: what ran.
        begin: begin of each window in ns, ascending.
        finish: their ends; none is later than the next begin.
        kinds: how many kinds of work there are.
    """
    length = (finish - begin).astype(np.float64)
    summed, between = np.zeros((len(begin), kinds)), np.zeros(len(begin))
    charged, alone = summed.copy(), summed.copy()
    if len(begin) and len(work.start):
        blocks = _blocks(work, begin, finish)
        found = at_once(*(partial(_add_block, work, block, summed, between) for block in blocks))
        charged[:], alone[:] = summed, summed
        special, crossing = (np.concatenate(rows) for rows in zip(*found, strict=True))
        if len(special):
            # Near zero a float holds every nanosecond.
            origin = int(work.start[0])
            clocks = clocks_of(work.start[special] - origin, work.end[special] - origin)
            edges = begin - origin, finish - origin
            _share(work, special[~crossing], origin, clocks, edges, (charged, alone))
            _cut(work, special[crossing], origin, clocks, edges, (summed, charged, alone))
    idle = np.maximum(length - charged.sum(axis=1), 0)
    between = np.minimum(between, idle)
    return Charges(summed, charged, alone, between, idle - between)


@dataclass(frozen=True)
class _Block:
    """Windows whose rows lie together.

    Attributes:
        rows: the rows that start in them or between them.
        windows: the windows.
        stretches: rows that start before the first window, in it, before the second, and so on.
        edges: where each stretch ends, in ns.
        reached: the latest end before the first row, in ns.
    """

    rows: slice
    windows: slice
    stretches: Int64s
    edges: Int64s
    reached: int


def _blocks(work: Work, begin: Int64s, finish: Int64s) -> list[_Block]:
    edges = np.stack([begin, finish], axis=1).ravel()
    place = np.searchsorted(work.start, edges)
    # A block begins with the first window of each so many rows.
    opens = np.unique(place[::2] // _BLOCK, return_index=True)[1]
    borders = np.append(place[2 * opens], len(work.start))
    borders[0] = 0
    latest = np.maximum.accumulate(
        np.maximum.reduceat(work.end, np.minimum(borders[:-1], len(work.start) - 1))
    )
    closes = np.append(opens[1:], len(begin))
    return [
        _Block(
            rows=slice(int(borders[n]), int(borders[n + 1])),
            windows=slice(int(first), int(last)),
            stretches=np.diff(
                np.concatenate([[borders[n]], place[2 * first : 2 * last], [borders[n + 1]]])
            ),
            edges=np.append(
                edges[2 * first : 2 * last],
                begin[last] if last < len(begin) else np.iinfo(np.int64).max,
            ),
            reached=int(latest[n - 1] if n else min(work.start[0], begin[0])),
        )
        for n, (first, last) in enumerate(zip(opens, closes, strict=True))
    ]


def _add_block(work: Work, block: _Block, summed: Floats, between: Floats) -> tuple[Int64s, Flags]:
    """Adds up the rows of a block that lie in one window, and its gaps.

    Returns:
        The rows that run while others do or across the edge of a window; whether it is the latter.
    """
    start, end = work.start[block.rows], work.end[block.rows]
    if not len(start):
        return np.zeros(0, np.int64), np.zeros(0, bool)
    latest = np.maximum.accumulate(np.append(block.reached, end))
    reached = latest[:-1]
    crossing = end > np.repeat(block.edges, block.stretches)
    windows = block.windows.stop - block.windows.start
    number = np.full(2 * windows + 1, -1)
    number[1::2] = np.arange(windows)
    window = np.repeat(number, block.stretches)
    inside = (window >= 0) & ~crossing
    kinds = summed.shape[1]
    place, took = window * kinds + work.kind[block.rows], end - start
    if not inside.all():
        place, took = place[inside], took[inside]
    added = np.bincount(place, weights=took, minlength=windows * kinds)
    summed[block.windows] = added.reshape(windows, kinds)
    between[block.windows] = _between_kernels(block, start, reached, work.kernel[block.rows])
    following = block.rows.stop if block.rows.stop < len(work.start) else -1
    joins = np.append(start, work.start[following]) < latest
    joins[-1] &= following > 0
    # What a row overlaps is the row before it, or overlaps one itself.
    special = np.flatnonzero(joins[:-1] | joins[1:] | crossing)
    return special + block.rows.start, crossing[special]


def _between_kernels(block: _Block, start: Int64s, reached: Int64s, kernel: Flags) -> Floats:
    """How long nothing ran between the first and the last kernel that starts in each window."""
    found = np.zeros(block.windows.stop - block.windows.start)
    kernels = np.flatnonzero(kernel)
    if not len(kernels):
        return found
    borders = np.cumsum(block.stretches)
    opens, closes = borders[:-1:2], borders[1::2]
    first, last = np.searchsorted(kernels, opens), np.searchsorted(kernels, closes) - 1
    some = np.flatnonzero(last >= first)
    opens, first, last = opens[some], kernels[first[some]], kernels[last[some]]
    waited = np.append(0, np.cumsum(np.maximum(start - reached, 0)))
    # What reaches into a window from before runs at its very begin.
    running = reached[opens] > block.edges[:-1:2][some]
    found[some] = waited[last + 1] - waited[np.where(running, opens, first + 1)]
    return found


def _share(
    work: Work,
    rows: Int64s,
    origin: int,
    clocks: Clocks,
    edges: tuple[Int64s, Int64s],
    totals: tuple[Floats, Floats],
) -> None:
    """Puts what the clocks say of rows in one window in the place of their lengths."""
    start, end = work.start[rows] - origin, work.end[rows] - origin
    window = np.searchsorted(edges[0], start, side="right") - 1
    windows, kinds = totals[0].shape
    inside = (window >= 0) & (start < edges[1][window])
    place = window[inside] * kinds + work.kind[rows[inside]]
    for total, opened, closed in zip(totals, clocks.at(start), clocks.at(end), strict=True):
        excess = (closed - opened - (end - start))[inside]
        added = np.bincount(place, weights=excess, minlength=windows * kinds)
        total += added.reshape(windows, kinds)


def _cut(
    work: Work,
    rows: Int64s,
    origin: int,
    clocks: Clocks,
    edges: tuple[Int64s, Int64s],
    totals: tuple[Floats, Floats, Floats],
) -> None:
    """Adds rows that run across edges of windows to each window that they touch."""
    moments = (*edges, work.start[rows] - origin, work.end[rows] - origin)
    shown = zip(*((moment, *clocks.at(moment)) for moment in moments), strict=True)
    for total, (begin, finish, start, end) in zip(totals, shown, strict=True):
        for kind in np.unique(work.kind[rows]):
            own = work.kind[rows] == kind
            for sign, edge in ((-1, begin), (1, finish)):
                total[:, kind] += sign * (_passed(edge, start[own]) - _passed(edge, end[own]))


def _passed(at: npt.NDArray[np.number], since: npt.NDArray[np.number]) -> Floats:
    """How much has passed, at some readings of a clock, since each of others: their sum."""
    since = np.sort(since)
    sums = np.append(0.0, np.cumsum(since, dtype=np.float64))
    done = np.searchsorted(since, at, side="right")
    passed: Floats = at * done.astype(np.float64) - sums[done]
    return passed
