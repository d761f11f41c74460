"""The calls of a model's modules in a Kineto trace, and which was open when work was launched.

Modules show as Python frames called `nn.Module: ...` where the profiler ran with stacks, and as
annotations (`record_function`) where somebody set them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spark_prof.traces.readers.kineto_collect import Collected
from spark_prof.traces.scopes import NO_SCOPE, Scopes, enclosing, innermost

Int64s = npt.NDArray[np.int64]


class Calls:
    """Calls of modules, sorted by thread and start.

    Args:
        scopes: takes what the calls make new.
        name: the module's name as a number, of each call.
        names: what these numbers stand for.
        thread: its thread as a number from 0.
        start: when it began, ns.
        end: when it ended, ns.

    Attributes:
        scope: the scope of each call.
        thread: its thread.
        start: when it began.
        end: when it ended.
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


def module_calls(found: Collected, scopes: Scopes, is_module: Callable[[str], bool]) -> Calls:
    """The calls of modules among frames, annotations and operators, times after the trace's base.

    vLLM's attention and its mixture of experts are operators, which compiled models have too.
    """
    chosen = [(found.frames, np.ones(len(found.frames), bool))]
    for events in (found.annotations, found.operators):
        distinct, places = np.unique(events.column("name"), return_inverse=True)
        named = [is_module(found.texts[number]) for number in distinct.tolist()]
        chosen.append((events, np.array([*named, False])[places]))
    columns = [
        np.concatenate([events.column(column)[rows] for events, rows in chosen])
        for column in ("name", "thread", "start_ns", "end_ns")
    ]
    return Calls(scopes, columns[0], found.texts, *columns[1:])
