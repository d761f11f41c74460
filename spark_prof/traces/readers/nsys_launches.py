"""Joins work on the GPU with the API call that launched it, by their correlation number.

Work may start long after its launch, in a later stretch of the trace; so launches are kept until
nothing more can be theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_QUEUE_NS = 5_000_000_000
"""The kernels of one graph start at most this long after its launch."""


@dataclass(frozen=True)
class Launched:
    """API calls of one process.

    Attributes:
        correlation: what joins them with their work.
        start: ns.
        thread: the calling thread.
        scope: what they were made for.
        launches: whether such a call launches work.
        graph: whether it launches a CUDA graph, which is work of many kernels.
    """

    correlation: Int64s
    start: Int64s
    thread: Int64s
    scope: Int64s
    launches: Bools
    graph: Bools

    def take(self, rows: Int64s) -> Launched:
        """Some of them."""
        return Launched(**{name: values[rows] for name, values in vars(self).items()})


class Pending:
    """The calls of one process whose work may still come.

    Attributes:
        launches: how many calls that launch work were added.
        worked: how many of them have work.
    """

    def __init__(self) -> None:
        self.launches = self.worked = 0
        self._calls: Launched | None = None
        self._used = np.empty(0, bool)

    def add(self, calls: Launched) -> None:
        """Adds the calls of a stretch."""
        self.launches += int(calls.launches.sum())
        used = np.zeros(len(calls.start), bool)
        if self._calls is not None:
            calls = Launched(
                **{n: np.append(values, vars(calls)[n]) for n, values in vars(self._calls).items()}
            )
            used = np.append(self._used, used)
        if (calls.correlation[1:] < calls.correlation[:-1]).any():
            order = np.argsort(calls.correlation, kind="stable")
            calls, used = calls.take(order), used[order]
        self._calls, self._used = calls, used

    def find(self, correlation: Int64s) -> tuple[Bools, Launched]:
        """Whether each piece of work has a launch, and which; what has none has any."""
        calls = self._calls
        if calls is None or not len(calls.start):
            nothing = np.zeros(len(correlation), np.int64)
            flags = nothing.astype(bool)
            return flags, Launched(nothing, nothing, nothing, nothing, flags, flags)
        place = np.searchsorted(calls.correlation, correlation)
        place = np.minimum(place, len(calls.start) - 1)
        found: Bools = (calls.correlation[place] == correlation) & (correlation >= 0)
        hit = np.zeros(len(calls.start), bool)
        hit[place[found]] = True
        self.worked += int((hit & calls.launches & ~self._used).sum())
        self._used |= hit
        return found, calls.take(place)

    def forget(self, before: int, now: int) -> None:
        """Drops calls that nothing more can belong to.

        Args:
            before: those that began since are kept in any case, ns.
            now: the next stretch begins then.
        """
        if self._calls is None:
            return
        calls = self._calls
        waits = ~self._used | (calls.graph & (calls.start > now - _QUEUE_NS))
        kept = np.flatnonzero((calls.start >= before) | (calls.launches & waits))
        self._calls, self._used = calls.take(kept), self._used[kept]
