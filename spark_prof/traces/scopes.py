"""The tree of ranges that were open when work was launched, and how to find them fast.

A range is a stretch of one thread's time. Ranges of one thread are nested: one that was pushed
inside another ends first. What is open at a moment is then a path in a tree, and a few thousand
paths stand for millions of launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s

NO_SCOPE = -1  # no range was open

_MOST = 1 << 20
"""Scopes beyond this many are no model's; what they would name stays with their parent."""


class Scopes:
    """A tree of named ranges; a scope is a number, its parent a smaller one or NO_SCOPE."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.names: list[str] = []
        self._children: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def child(self, parent: int, name: str) -> int:
        """The scope of a range of that name inside `parent`; it is added where it is new."""
        scope = self._children.get((parent, name))
        if scope is None:
            if len(self.names) >= _MOST:
                return parent
            scope = self._children[parent, name] = len(self.names)
            self.parents.append(parent)
            self.names.append(name)
        return scope

    def path(self, scope: int) -> list[str]:
        """The names from the outermost range to the scope itself."""
        names = []
        while scope != NO_SCOPE:
            names.append(self.names[scope])
            scope = self.parents[scope]
        return names[::-1]


def enclosing(start: Int64s, end: Int64s) -> Int64s:
    """The innermost range around each range of one thread, -1 for none.

    Args:
        start: starts in ns, sorted by start and, where equal, by falling end.
        end: ends in ns. A range that ends after its encloser counts as inside it while it began
            there; it encloses what begins after the other has ended.
    """
    # Each range looks at the one before it, and passes by whatever has ended: nothing between a
    # range and its candidate is open when it starts, so neither is what the candidate passed by.
    candidate = np.arange(-1, len(start) - 1, dtype=np.int64)
    active = np.flatnonzero(candidate >= 0)
    while len(active):
        looked = candidate[active]
        closed = end[looked] <= start[active]
        # An empty range at the moment at which another begins is inside it all the same.
        active = active[closed & (looked >= 0)]
        candidate[active] = candidate[candidate[active]]
        active = active[candidate[active] >= 0]
    return candidate


def innermost(start: Int64s, end: Int64s, parents: Int64s, times: Int64s) -> Int64s:
    """The innermost range of one thread that is open at each time, -1 for none."""
    innermost_range = np.searchsorted(start, times, side="right") - 1
    active = np.flatnonzero(innermost_range >= 0)
    while len(active):
        closed = end[innermost_range[active]] < times[active]
        active = active[closed]
        innermost_range[active] = parents[innermost_range[active]]
        active = active[innermost_range[active] >= 0]
    return innermost_range.astype(np.int64)


def groups(keys: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Each key, such as a thread, with the rows that have it, in order."""
    rows_of: dict[int, Int64s] = pd.Series(keys).groupby(keys, sort=False).indices  # type: ignore[assignment]
    yield from rows_of.items()


_DEEPEST = 256
"""Ranges nested deeper are of no model; what they would name stays with what is around them."""


@dataclass(frozen=True)
class ModuleRanges:
    """Ranges of one process that name modules, in order of their start."""

    start: Int64s  # ns
    end: Int64s
    thread: Int64s
    name: Int64s  # the number of its name in the list that the walk was given

    def calls(self, scope: Int64s) -> pd.DataFrame:
        """The calls as `Window.calls` has them, with the scope of each."""
        return pd.DataFrame(
            {"scope": scope, "start_ns": self.start, "end_ns": self.end, "thread": self.thread}
        )


@dataclass(frozen=True)
class _Stack:
    """The ranges of one thread that matter in a stretch, as `enclosing` wants them."""

    start: Int64s
    end: Int64s
    scope: Int64s
    parents: Int64s


class ScopeWalk:
    """Follows the ranges of one process through its stretches, in order of time."""

    def __init__(self, scopes: Scopes, names: list[str]) -> None:
        self._scopes, self._names = scopes, names
        self._stacks: dict[int, _Stack] = {}

    def advance(self, ranges: ModuleRanges, begin: int) -> Int64s:
        """Goes on to the stretch that begins at `begin`, in ns; the scope of each range."""
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
        scope = np.full(len(times), NO_SCOPE, np.int64)
        for thread, rows in groups(threads):
            stack = self._stacks.get(thread)
            if stack is not None:
                place = innermost(stack.start, stack.end, stack.parents, times[rows])
                scope[rows] = np.where(place >= 0, stack.scope[place], NO_SCOPE)
        return scope

    def _enter(self, thread: int, ranges: ModuleRanges, rows: Int64s) -> Int64s:
        rows_start, rows_end = ranges.start[rows], ranges.end[rows]
        tied = (rows_start[1:] == rows_start[:-1]) & (rows_end[1:] > rows_end[:-1])
        order = np.lexsort((-rows_end, rows_start)) if tied.any() else np.arange(len(rows))
        start, end, name = rows_start[order], rows_end[order], ranges.name[rows][order]
        open_scope = np.empty(0, np.int64)
        open_ = self._stacks.get(thread)
        if open_ is not None:
            start, end = np.append(open_.start, start), np.append(open_.end, end)
            open_scope = open_.scope
        parents = enclosing(start, end)
        scope = self._named(parents, open_scope, name)
        self._stacks[thread] = _Stack(start, end, scope, parents)
        scope_of_row = np.empty(len(rows), np.int64)
        scope_of_row[order] = scope[len(open_scope) :]
        return scope_of_row

    def _named(self, parents: Int64s, open_scope: Int64s, name: Int64s) -> Int64s:
        """The scope of each range: those of the open ones are known, the rest follow by depth."""
        scope = np.append(open_scope, np.full(len(name), NO_SCOPE, np.int64))
        names = np.append(np.zeros(len(open_scope), np.int64), name)
        resolved = np.zeros(len(scope), bool)
        resolved[: len(open_scope)] = True
        left = np.arange(len(open_scope), len(scope))
        for _ in range(_DEEPEST):
            parent = parents[left]
            ready = (parent < 0) | resolved[parent]
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
            resolved[rows] = True
            left = left[~ready]
        parents = parents.copy()
        while len(left):
            over = parents[left]
            reached = resolved[over]
            scope[left[reached]] = scope[over[reached]]
            resolved[left[reached]] = True
            left, over = left[~reached], over[~reached]
            parents[left] = parents[over]
        return scope
