"""Finds launch and module of the work in an nsys export, stretch by stretch.

Push/pop ranges of one thread are nested. Those that name modules are followed from stretch to
stretch; what is open at the end of one goes on into the next. Work and the API call that launched
it share a correlation number. Work may start long after its launch, in a later stretch; so launches
are kept until nothing more can be theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.scopes import NO_SCOPE, Scopes, enclosing, groups, innermost

Bools = npt.NDArray[np.bool_]

_QUEUE_NS = 5_000_000_000
"""The kernels of one graph start at most this long after its launch."""


@dataclass(frozen=True)
class Launched:
    """API calls of one process."""

    correlation: Int64s
    start: Int64s
    thread: Int64s
    scope: Int64s
    launches: Bools  # whether such a call launches work
    graph: Bools  # whether it launches a CUDA graph, which is work of many kernels

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


Int64s = npt.NDArray[np.int64]

_DEEPEST = 256
"""Ranges nested deeper are of no model; what they would name stays with what is around them."""


@dataclass(frozen=True)
class ModuleRanges:
    """Ranges of one process that name modules, in order of their start."""

    start: Int64s  # ns
    end: Int64s
    thread: Int64s
    name: Int64s  # the number of its name in the list that the walk was given


@dataclass(frozen=True)
class _Stack:
    """The ranges of one thread that matter in a stretch, as `scopes.enclosing` wants them."""

    start: Int64s
    end: Int64s
    scope: Int64s
    parents: Int64s


class ScopeWalk:
    """Follows the ranges of one process through its stretches, in order of time.

    Args:
        names: names of modules by their number; it may grow meanwhile.
    """

    def __init__(self, scopes: Scopes, names: list[str]) -> None:
        self._scopes, self._names = scopes, names
        self._stacks: dict[int, _Stack] = {}

    def advance(self, ranges: ModuleRanges, begin: int) -> Int64s:
        """Goes on to the next stretch.

        Args:
            begin: when it begins, ns.

        Returns:
            The scope of each range.
        """
        scope = np.full(len(ranges.start), NO_SCOPE, np.int64)
        before, self._stacks = self._stacks, {}
        for thread, stack in before.items():
            open_ = np.flatnonzero(stack.end > begin)
            if len(open_):
                start, end = stack.start[open_], stack.end[open_]
                self._stacks[thread] = _Stack(start, end, stack.scope[open_], enclosing(start, end))
        for thread, rows in groups(ranges.thread):
            scope[rows] = self._enter(thread, ranges, rows)
        return scope

    def at(self, threads: Int64s, times: Int64s) -> Int64s:
        """The scope that was open on a thread at a time in this stretch."""
        found = np.full(len(times), NO_SCOPE, np.int64)
        for thread, rows in groups(threads):
            stack = self._stacks.get(thread)
            if stack is not None:
                place = innermost(stack.start, stack.end, stack.parents, times[rows])
                found[rows] = np.where(place >= 0, stack.scope[place], NO_SCOPE)
        return found

    def _enter(self, thread: int, ranges: ModuleRanges, rows: Int64s) -> Int64s:
        rows_start, rows_end = ranges.start[rows], ranges.end[rows]
        tied = (rows_start[1:] == rows_start[:-1]) & (rows_end[1:] > rows_end[:-1])
        order = np.lexsort((-rows_end, rows_start)) if tied.any() else np.arange(len(rows))
        start, end, name = rows_start[order], rows_end[order], ranges.name[rows][order]
        known = np.empty(0, np.int64)
        open_ = self._stacks.get(thread)
        if open_ is not None:
            start, end = np.append(open_.start, start), np.append(open_.end, end)
            known = open_.scope
        parents = enclosing(start, end)
        scope = self._named(parents, known, name)
        self._stacks[thread] = _Stack(start, end, scope, parents)
        found = np.empty(len(rows), np.int64)
        found[order] = scope[len(known) :]
        return found

    def _named(self, parents: Int64s, known: Int64s, name: Int64s) -> Int64s:
        """The scope of each range: those of the open ones are known, the rest follow by depth."""
        scope = np.append(known, np.full(len(name), NO_SCOPE, np.int64))
        names = np.append(np.zeros(len(known), np.int64), name)
        done = np.zeros(len(scope), bool)
        done[: len(known)] = True
        left = np.arange(len(known), len(scope))
        for _ in range(_DEEPEST):
            parent = parents[left]
            ready = (parent < 0) | done[parent]
            rows, parent = left[ready], parent[ready]
            if not len(rows):
                break
            above = np.where(parent >= 0, scope[parent], NO_SCOPE)
            codes, pairs = pd.factorize((above + 1) * len(self._names) + names[rows])
            numbers = [divmod(int(pair), len(self._names)) for pair in pairs]
            scope[rows] = np.array(
                [self._scopes.child(over - 1, self._names[number]) for over, number in numbers],
                np.int64,
            )[codes]
            done[rows] = True
            left = left[~ready]
        parents = parents.copy()
        while len(left):
            over = parents[left]
            reached = done[over]
            scope[left[reached]] = scope[over[reached]]
            done[left[reached]] = True
            left, over = left[~reached], over[~reached]
            parents[left] = parents[over]
        return scope
