"""Splits the time in which several kernels ran evenly among them.

Two clocks do it. The shared clock advances by 1/n while n kernels run, the lone clock only while
one kernel runs alone: what they show at a kernel's end less what they show at its start is its
part of the time, and the time that it had for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clocks:
    """What the clocks show at some moments; between two of them both run evenly.

    Attributes:
        moments: every start and end in ns, ascending.
        shared: the shared clock at each moment, in ns.
        lone: the lone clock at each.
        opens: where among the moments each kernel starts.
        closes: where it ends.
    """

    moments: Int64s
    shared: Floats
    lone: Floats
    opens: Int64s
    closes: Int64s

    def parts(self) -> tuple[Floats, Floats]:
        """Each kernel's part of the time, and how long it had it for itself."""
        return (
            self.shared[self.closes] - self.shared[self.opens],
            self.lone[self.closes] - self.lone[self.opens],
        )

    def at(self, moment: Int64s) -> tuple[Floats, Floats]:
        """The shared and the lone clock at any moments."""
        return (
            np.interp(moment, self.moments, self.shared),
            np.interp(moment, self.moments, self.lone),
        )


def clocks_of(start: Int64s, end: Int64s) -> Clocks:
    """The clocks of these kernels.

    Args:
        start: starts, ascending, in ns from an origin near them: a float holds them exactly.
        end: ends.
    """
    order = np.argsort(end, kind="stable")
    ended = end[order]
    # Both are in order, so that a start's place in all moments is its own among both.
    opens = np.arange(len(start)) + np.searchsorted(ended, start, side="right")
    running = np.full(2 * len(start), -1)
    running[opens] = 1
    closed = np.flatnonzero(running < 0)
    closes = np.empty_like(closed)
    closes[order] = closed
    moments = np.empty(len(running), np.int64)
    moments[opens], moments[closed] = start, ended
    during = np.cumsum(running)[:-1]
    length = np.diff(moments).astype(np.float64)
    shared = np.divide(length, during, out=np.zeros_like(length), where=during > 0)
    lone = np.where(during == 1, length, 0.0)
    return Clocks(
        moments,
        np.append(0.0, np.cumsum(shared)),
        np.append(0.0, np.cumsum(lone)),
        opens,
        closes,
    )
