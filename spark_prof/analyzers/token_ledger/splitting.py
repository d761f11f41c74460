"""Splits what overlaps other work, or runs across edges of windows, by the clocks of `sharing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.token_ledger.sharing import Clocks, clocks_of

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Work:
    """Everything that ran, in order of start.

    Attributes:
        start: ns.
        end: ns; one before its start counts as that.
        kind: what work each is, from 0.
        kernel: whether it is a kernel: a copy does not tell when a step's kernels begin.
    """

    start: Int64s
    end: Int64s
    kind: npt.NDArray[np.integer[Any]]
    kernel: Flags


@dataclass(frozen=True)
class Totals:
    """Times in ns, one row each window, one column each kind of work, which are added to.

    Attributes:
        summed: how long the work ran in the window.
        charged: its part of the window.
        alone: how long it ran while nothing else did.
    """

    summed: Floats
    charged: Floats
    alone: Floats

    def of(self, windows: slice) -> Totals:
        """Those of some windows, in the same place."""
        return Totals(self.summed[windows], self.charged[windows], self.alone[windows])


def split(
    work: Work, rows: Int64s, crossing: Flags, windows: tuple[Int64s, Int64s], totals: Totals
) -> None:
    """Corrects the totals for rows that overlap others, and adds those that cross edges.

    Args:
        work: what ran.
        rows: these rows, with all that they overlap. Those that lie in one window have been counted
            with their length in every total, the others not at all.
        crossing: whether each runs across the edge of a window.
        windows: begins and ends of the windows in ns.
        totals: of these windows.
    """
    if not len(rows):
        return
    # Near zero a float holds every nanosecond. What lies outside all windows counts to none.
    origin, last = int(windows[0][0]), int(windows[1][-1])
    start = np.clip(work.start[rows], origin, last) - origin
    end = np.maximum(np.clip(work.end[rows], origin, last) - origin, start)
    clocks = clocks_of(start, end)
    edges = windows[0] - origin, windows[1] - origin
    kind = work.kind[rows]
    begins = np.searchsorted(edges[0], start, side="right") - 1
    inside = ~crossing & (begins >= 0) & (start < edges[1][begins])
    place = begins[inside] * totals.charged.shape[1] + kind[inside]
    for total, part in zip((totals.charged, totals.alone), clocks.parts(), strict=True):
        # Its part takes the place of its length.
        excess = (part - (end - start))[inside]
        total += np.bincount(place, weights=excess, minlength=total.size).reshape(total.shape)
    if crossing.any():
        _cut(start[crossing], end[crossing], kind[crossing], clocks, edges, totals)


def _cut(
    start: Int64s,
    end: Int64s,
    kind: npt.NDArray[np.integer[Any]],
    clocks: Clocks,
    edges: tuple[Int64s, Int64s],
    totals: Totals,
) -> None:
    """Adds rows that run across edges of windows to each window that they touch."""
    shown = zip(*((moment, *clocks.at(moment)) for moment in (*edges, start, end)), strict=True)
    of = (totals.summed, totals.charged, totals.alone)
    for total, (begin, finish, opened, closed) in zip(of, shown, strict=True):
        for each in np.unique(kind):
            own = kind == each
            for sign, edge in ((-1, begin), (1, finish)):
                total[:, each] += sign * (_passed(edge, opened[own]) - _passed(edge, closed[own]))


def _passed(at: npt.NDArray[np.number], since: npt.NDArray[np.number]) -> Floats:
    """How much has passed, at some readings of a clock, since each of others: their sum."""
    since = np.sort(since)
    sums = np.append(0.0, np.cumsum(since, dtype=np.float64))
    done = np.searchsorted(since, at, side="right")
    passed: Floats = at * done.astype(np.float64) - sums[done]
    return passed
