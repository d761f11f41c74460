"""Splits the time in which several kernels ran evenly among them.

Two clocks do it. The shared clock advances by 1/n while n kernels run, the lone clock only while
one kernel runs alone: what they show at a kernel's end less what they show at its start is its
part of the time, and the time that it had for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Clocks", "clocks_of"]

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clocks:
    """What the clocks show at some moments; between two of them both run evenly.

    Attributes:
        moments: ns, ascending.
        shared: the shared clock at each moment, in ns.
        lone: the lone clock at each.
    """

    moments: Floats
    shared: Floats
    lone: Floats

    def at(self, moment: Int64s) -> tuple[Floats, Floats]:
        """The shared and the lone clock at other moments."""
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
    end = np.sort(end, kind="stable")
    # Both are in order, so that a start's place in all moments is its own among both.
    place = np.arange(len(start)) + np.searchsorted(end, start, side="right")
    opens = np.zeros(2 * len(start), bool)
    opens[place] = True
    moments = np.empty(len(opens), np.int64)
    moments[opens], moments[~opens] = start, end
    running = np.cumsum(np.where(opens, 1, -1))
    length = np.diff(moments).astype(np.float64)
    during = running[:-1]
    shared = np.divide(length, during, out=np.zeros_like(length), where=during > 0)
    lone = np.where(during == 1, length, 0.0)
    return Clocks(
        moments.astype(np.float64),
        np.append(0.0, np.cumsum(shared)),
        np.append(0.0, np.cumsum(lone)),
    )
