"""Charges every instant of a step's window to what ran in it, or to a gap.

What counts is when something ran, not which step launched it: so the parts of a window add up to
its length. Most kernels lie in one window and overlap nothing, and their lengths are added up; the
others are split.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.blocks import at_once
from spark_prof.analyzers.token_ledger.splitting import Totals, Work, split

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_BLOCK = 1 << 17


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
    totals = Totals(*(np.zeros((len(begin), kinds)) for _ in range(3)))
    between = np.zeros(len(begin))
    if len(begin) and len(work.start):
        blocks = _blocks(work, begin, finish)
        found = at_once(*(partial(_add_block, work, block, totals, between) for block in blocks))
        rows, crossing = (np.concatenate(parts) for parts in zip(*found, strict=True))
        split(work, rows, crossing, (begin, finish), totals)
    idle = np.maximum(length - totals.charged.sum(axis=1), 0)
    between = np.minimum(between, idle)
    return Charges(totals.summed, totals.charged, totals.alone, between, idle - between)


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


def _add_block(work: Work, block: _Block, totals: Totals, between: Floats) -> tuple[Int64s, Flags]:
    """Adds up the rows of a block, and its gaps.

    Returns:
        Where something runs on into another block or window: the rows that overlap each other or
        do that, which are still to be split, and whether it is the latter. Else no rows.
    """
    start = work.start[block.rows]
    end = np.maximum(work.end[block.rows], start)
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
    kinds = totals.summed.shape[1]
    place, took = window * kinds + work.kind[block.rows], end - start
    if not inside.all():
        place, took = place[inside], took[inside]
    added = np.bincount(place, weights=took, minlength=windows * kinds)
    own = totals.of(block.windows)
    for total in (own.summed, own.charged, own.alone):
        total += added.reshape(windows, kinds)
    between[block.windows] = _between_kernels(block, start, reached, work.kernel[block.rows])
    following = block.rows.stop if block.rows.stop < len(work.start) else -1
    joins = np.append(start, work.start[following]) < latest
    joins[-1] &= following > 0
    # What a row overlaps is the row before it, or overlaps one itself.
    rows = np.flatnonzero(joins[:-1] | joins[1:] | crossing)
    cut = crossing[rows]
    rows += block.rows.start
    if joins[0] or joins[-1] or cut.any():
        return rows, cut
    split(work, rows, cut, (block.edges[:-1:2], block.edges[1::2]), own)
    return rows[:0], cut[:0]


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
