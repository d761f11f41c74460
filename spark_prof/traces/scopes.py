"""The tree of ranges that were open when work was launched, and how to find them fast.

A range is a stretch of one thread's time. Ranges of one thread are nested: one that was pushed
inside another ends first. What is open at a moment is then a path in a tree, and a few thousand
paths stand for millions of launches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

Int64s = npt.NDArray[np.int64]

NO_SCOPE = -1
"""No range was open."""

_MOST = 1 << 20
"""Scopes beyond this many are no model's; what they would name stays with their parent."""


class Scopes:
    """A tree of named ranges; a scope is a number, its parent a smaller one or NO_SCOPE.

    Attributes:
        parents: the parent of each scope.
    """

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
    """The innermost range of one thread that is open at each time, -1 for none.

    Args:
        start: starts in ns, sorted as for `enclosing`.
        parents: what `enclosing` returned.
    """
    found = np.searchsorted(start, times, side="right") - 1
    active = np.flatnonzero(found >= 0)
    while len(active):
        closed = end[found[active]] < times[active]
        active = active[closed]
        found[active] = parents[found[active]]
        active = active[found[active] >= 0]
    return found.astype(np.int64)


def groups(keys: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Each key, such as a thread, with the rows that have it, in order."""
    codes, unique = pd.factorize(keys)
    if len(unique) < 2:
        if not len(unique):
            return
        yield int(unique[0]), np.arange(len(keys))
        return
    # Numbers of 16 bits are sorted without comparing them.
    order = np.argsort(codes.astype(np.uint16) if len(unique) < 1 << 16 else codes, kind="stable")
    edges = np.cumsum(np.bincount(codes, minlength=len(unique)))
    for key, first, last in zip(unique, [0, *edges[:-1]], edges, strict=True):
        yield int(key), order[first:last]


class Calls:
    """Calls of modules, sorted by thread and start.

    Args:
        name: the module's name as a number, of each call.
        thread: its thread as a number from 0.

    Attributes:
        thread: its thread.
    """

    def __init__(
        self, scopes: Scopes, name: Int64s, names: list[str], thread: Int64s, start: Int64s,
        end: Int64s,
    ) -> None:  # fmt: skip
        order = np.lexsort((-end, start, thread))
        self.thread, self.start, self.end = thread[order], start[order], end[order]
        # Every thread gets a stretch of the same line, so that one search serves them all.
        self._moments = np.unique(np.concatenate([start, end]))
        self._starts, self._ends = self._on_line(self.start), self._on_line(self.end)
        self._parents = enclosing(self._starts, self._ends)
        self.scope = np.empty(len(order), np.int64)
        found: list[int] = []
        for parent, number in zip(self._parents.tolist(), name[order].tolist(), strict=True):
            above = found[parent] if parent >= 0 else NO_SCOPE
            found.append(scopes.child(above, names[number]))
        self.scope[:] = found

    def at(self, thread: Int64s, times: Int64s) -> Int64s:
        """The scope of the innermost call that is open in that thread at that time."""
        if not len(self.scope):
            return np.full(len(times), NO_SCOPE, np.int64)
        # A moment between two known ones lies half-way between their places.
        place = 2 * np.searchsorted(self._moments, times)
        known = np.minimum(place // 2, len(self._moments) - 1)
        place -= self._moments[known] != times
        line = place + thread * self._width
        found = innermost(self._starts, self._ends, self._parents, line)
        inside = (found != NO_SCOPE) & (self.thread[found] == thread)
        scope: Int64s = np.where(inside, self.scope[found], NO_SCOPE)
        return scope

    @property
    def _width(self) -> int:
        return 2 * len(self._moments) + 4

    def _on_line(self, times: Int64s) -> Int64s:
        line: Int64s = 2 * np.searchsorted(self._moments, times) + self.thread * self._width
        return line
