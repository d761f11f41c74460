"""The section about launch shapes: how the kernels of decode steps fill the GPU and its tiles."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.shapes.shape_rows import ShapeRow
from spark_prof.dashboards.formats import MISSING, clean, count, share
from spark_prof.dashboards.section import Column, Section

_LEAST = 0.01
_MOST_ROWS = 15


def shapes(report: Report) -> Section:
    """Lists the launch shapes that take at least a hundredth of the time of decode steps."""
    found = report.shapes
    every = found.rows if found else ()
    shown = [row for row in every if row.share >= _LEAST][:_MOST_ROWS]
    rows = tuple(
        (
            share(row.share),
            clean(row.component),
            clean(row.grid).replace(",", "x"),
            MISSING if row.waves is None else f"{row.waves:.2f}",
            share(row.busy),
            share(row.occupancy.share) if row.occupancy else MISSING,
            clean(" and ".join(row.occupancy.limiters)) if row.occupancy else MISSING,
            share(row.achieved),
            _tile(row),
            _rows_used(row),
            clean(row.name),
        )
        for row in shown
    )
    columns = (
        Column("Share", "number"),
        Column("Component"),
        Column("Grid"),
        Column("Waves", "number", optional=True),
        Column("Busy", "number"),
        Column("Occupancy", "number"),
        Column("Limited by", optional=True),
        Column("Achieved", "number", optional=True),
        Column("Tile", optional=True),
        Column("Token rows", "number"),
        Column("Kernel", "name"),
    )
    return Section("shapes", "How kernels fill the GPU", columns, rows, _intro(report, shown))


def _intro(report: Report, shown: list[ShapeRow]) -> tuple[str, ...]:
    found = report.shapes
    if not found:
        return ()
    lines = []
    of_decode = " of decode steps" if report.steps.decode else ""
    if found.multiprocessors:
        lines.append(
            f"Launches{of_decode} on {count(found.multiprocessors)} multiprocessors. Busy is the "
            "share of them that has a block, over all waves; occupancy the warps that one could "
            "hold."
        )
    if any(row.tile_waste for row in shown):
        lines.append(
            "Token rows of a tile that hold no token cost arithmetic, not memory traffic: a kernel "
            "that waits for memory does not get slower by them."
        )
    return (*lines, *map(clean, found.notes))


def _tile(row: ShapeRow) -> str:
    if row.tile is None:
        return MISSING
    sides = [row.tile.first, row.tile.second]
    return "x".join(str(side) for side in [*sides, *([row.tile.depth] if row.tile.depth else [])])


def _rows_used(row: ShapeRow) -> str:
    if row.rows_used is None or row.tile is None or row.tile.token_rows is None:
        return MISSING
    about = "about " if row.expected else ""
    return f"{about}{row.rows_used:.3g} of {row.tile.token_rows}"
