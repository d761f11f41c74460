"""One call of a kernel: what ran before and after it, and how it compares with its other calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.views.columns import KernelColumns

Flags = npt.NDArray[np.bool_]

_BLOCK = 1 << 18


@dataclass(frozen=True)
class Call:
    """One call. Places are in the columns of its rank; -1 is none.

    Attributes:
        place: of the call.
        before: the call that ran last before it on its stream.
        after: the call that begins next on its stream.
        gap_ns: how long its stream did nothing before it, None where nothing ran before.
        idle_ns: how long the whole device did nothing before it, None where nothing ran before.
        calls: of the same kernel.
        longer: how many of them take longer.
        median_ns: their median duration.
    """

    place: int
    before: int
    after: int
    gap_ns: int | None
    idle_ns: int | None
    calls: int
    longer: int
    median_ns: int


def call_at(columns: KernelColumns, place: int) -> Call:
    """Looks at the call at a place of the columns."""
    start, end = columns.start_ns, columns.end_ns
    stream = columns.stream
    own = np.zeros(len(columns.streams), bool)
    own[stream[place]] = True
    before = _last_ended(columns, own, place)
    after = _first(stream, own, place + 1, len(columns))
    same = np.flatnonzero(columns.name == columns.name[place])
    took = end[same] - start[same]
    began = int(start[place])
    return Call(
        place=place,
        before=before,
        after=after,
        gap_ns=max(began - int(end[before]), 0) if before >= 0 else None,
        idle_ns=max(began - int(end[:place].max()), 0) if place else None,
        calls=len(same),
        longer=int((took > end[place] - start[place]).sum()),
        median_ns=int(np.median(took)),
    )


@dataclass(frozen=True)
class Search:
    """What was found of a name.

    Attributes:
        place: of the next call, -1 where no kernel is called like this.
        names: kernels that are.
        wrapped: whether the next call was found from the beginning of the recording on.
    """

    place: int
    names: int
    wrapped: bool


def find_call(columns: KernelColumns, text: str, after: int) -> Search:
    """Finds the next call of a kernel whose name contains a text, in upper or lower case.

    Args:
        columns: of a rank.
        text: to look for; an empty one is in no name.
        after: place behind which to begin.
    """
    wanted = text.casefold()
    named = np.array([bool(wanted) and wanted in name.casefold() for name in columns.names], bool)
    found = int(named.sum())
    if not found:
        return Search(-1, 0, False)
    behind = _first(columns.name, named, after + 1, len(columns))
    if behind >= 0:
        return Search(behind, found, False)
    return Search(_first(columns.name, named, 0, min(after + 1, len(columns))), found, True)


def find_kernel(columns: KernelColumns, name: int) -> int | None:
    """The first call of the kernel with this place in the names, one of a step if there is one."""
    places = np.flatnonzero(columns.name == name)
    in_steps = places[columns.step[places] >= 0]
    found = in_steps if len(in_steps) else places
    return int(found[0]) if len(found) else None


def _first(column: npt.NDArray[Any], wanted: Flags, begin: int, end: int) -> int:
    """Where a column first has a wanted value, -1 where it has none."""
    for block in range(max(begin, 0), end, _BLOCK):
        hits = wanted[column[block : min(block + _BLOCK, end)]]
        if hits.any():
            return block + int(hits.argmax())
    return -1


def _last_ended(columns: KernelColumns, streams: Flags, end: int) -> int:
    """Of the calls before a place on these streams the one that ended last, -1 without any."""
    found, latest = -1, 0
    for block in range(0, end, _BLOCK):
        part = slice(block, min(block + _BLOCK, end))
        mine = np.flatnonzero(streams[columns.stream[part]])
        if not len(mine):
            continue
        ends = columns.end_ns[part][mine]
        place = int(ends.argmax())
        if found < 0 or ends[place] > latest:
            found, latest = block + int(mine[place]), int(ends[place])
    return found
