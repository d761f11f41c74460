"""What stands in and beside the marks of a time line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np

from spark_prof.analyzers.findings.naming import short_name
from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.analyzers.views.timeline import Timeline
from spark_prof.dashboards.charts import label
from spark_prof.dashboards.formats import Figure, count, counted, microseconds, share
from spark_prof.vocabulary import COMPONENTS, PHASES

_NAME = 64
"""Characters of a kernel's name that are shown under the pointer."""

_CHARACTER, _PADDING = 6.5, 4
"""Pixels that a character takes, and the ends of a text."""


def duration(ns: int) -> str:
    """Writes a time as reports do, and one below 1 us in ns."""
    return Figure(f"{ns} ns", ns / 1e3) if 0 < abs(ns) < 1000 else microseconds(ns / 1e3)


def instant(ns: int) -> str:
    """Writes an instant to the nanosecond, in us: 1,234.567 us."""
    sign, size = ("-", -ns) if ns < 0 else ("", ns)
    return Figure(f"{sign}{size // 1000:,}.{size % 1000:03d} us", ns / 1e3)


def hovers(drawn: Timeline, columns: Mapping[int, KernelColumns], origin_ns: int) -> list[str]:
    """What is said of each mark under the pointer; safe to show."""
    gaps = _gaps_before(drawn)
    named = cache(partial(label, width=_NAME))
    return [_hover(drawn, columns, origin_ns, row, gaps, named) for row in range(len(drawn.marks))]


def inscriptions(drawn: Timeline, columns: Mapping[int, KernelColumns], pixels: int) -> list[str]:
    """What is written into each mark, empty where it is too narrow; safe to show.

    Args:
        drawn: the range.
        columns: by rank, for the names.
        pixels: how wide the range is drawn.
    """
    marks = drawn.marks
    begin, end = (np.clip(t, drawn.from_ns, drawn.to_ns) for t in (marks.begin_ns, marks.end_ns))
    width = (end - begin) * pixels / (drawn.to_ns - drawn.from_ns)
    room = (width - _PADDING) / _CHARACTER
    found = [""] * len(marks)
    for row in np.flatnonzero(room >= 1).tolist():
        fitting = (t for t in _inscription(drawn, columns, row) if len(t) <= room[row])
        found[row] = label(next(fitting, ""))
    return found


def _inscription(drawn: Timeline, columns: Mapping[int, KernelColumns], row: int) -> list[str]:
    """What could be written into a mark, the longest first."""
    marks = drawn.marks
    lane = drawn.lanes[int(marks.lane[row])]
    first, last = int(marks.first[row]), int(marks.last[row])
    if lane.kind in ("steps", "layers"):
        number = f"{first}" if first == last else f"{first}-{last}"
        noun = lane.kind[:-1] if first == last else lane.kind
        return [f"{noun} {number}{_phase(drawn, row)}", f"{noun} {number}", number]
    if lane.kind == "components":
        return [COMPONENTS[int(marks.component[row])]]
    if marks.kernel[row] < 0:
        return []
    own = columns[lane.rank]
    return [short_name(own.names[int(own.name[int(marks.kernel[row])])])]


def _hover(
    drawn: Timeline,
    columns: Mapping[int, KernelColumns],
    origin_ns: int,
    row: int,
    gaps: Mapping[int, int],
    named: Callable[[str], str],
) -> str:
    marks = drawn.marks
    lane = drawn.lanes[int(marks.lane[row])]
    begin, end = int(marks.begin_ns[row]), int(marks.end_ns[row])
    first, last = int(marks.first[row]), int(marks.last[row])
    if marks.kernel[row] >= 0:
        lines = _of_kernel(drawn, columns[lane.rank], row, gaps.get(row), named)
    elif lane.kind in ("steps", "layers"):
        noun = lane.kind[:-1]
        number = f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
        lines = [number + _phase(drawn, row)]
        if lane.kind == "layers":
            lines.append(f"ran {_of_length(marks.busy_ns[row], begin, end, drawn)}")
    else:
        name = COMPONENTS[int(marks.component[row])]
        alone = lane.kind == "components" and drawn.exact
        lines = [name if alone else f"mostly {name}"]
        lines.append(f"busy {_of_length(marks.busy_ns[row], begin, end, drawn)}")
        if marks.kernels[row]:
            lines.append(f"{counted(int(marks.kernels[row]), 'kernel')} begin here")
    return "<br>".join([*lines, f"at {instant(begin - origin_ns)}, {duration(end - begin)} long"])


def _of_kernel(
    drawn: Timeline, own: KernelColumns, row: int, gap: int | None, named: Callable[[str], str]
) -> list[str]:
    place = int(drawn.marks.kernel[row])
    layer, step = int(own.layer[place]), int(own.step[place])
    where = [COMPONENTS[int(own.component[place])]]
    where += [f"layer {count(layer)}"] if layer >= 0 else []
    where += [f"step {count(step)}"] if step >= 0 else ["in no step"]
    lines = [f"<b>{named(own.names[int(own.name[place])])}</b>", ", ".join(where)]
    if gap is not None:
        lines.append(f"{duration(gap)} after the one before it" if gap else "no gap before it")
    return lines


def _gaps_before(drawn: Timeline) -> dict[int, int]:
    """By mark of a kernel, how long its lane did nothing before; not of a lane's first one."""
    marks = drawn.marks
    found: dict[int, int] = {}
    for lane in range(len(drawn.lanes)):
        rows = np.flatnonzero((marks.lane == lane) & (marks.kernel >= 0))
        reached = np.maximum.accumulate(marks.end_ns[rows])
        gaps = np.maximum(marks.begin_ns[rows][1:] - reached[:-1], 0)
        found |= dict(zip(rows[1:].tolist(), gaps.tolist(), strict=True))
    return found


def _of_length(busy: int, begin: int, end: int, drawn: Timeline) -> str:
    length = min(end, drawn.to_ns) - max(begin, drawn.from_ns)
    return f"{share(int(busy) / length) if length else '100 %'} of the time"


def _phase(drawn: Timeline, row: int) -> str:
    phase = int(drawn.marks.phase[row])
    known = phase >= 0 and PHASES[phase] != "unknown"
    return f" {PHASES[phase]}" if known else ""
