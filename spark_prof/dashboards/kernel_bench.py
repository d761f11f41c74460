"""Draws what `spark-prof kernels bench` measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spark_prof.dashboards.formats import MISSING, bandwidth, clean, count, microseconds, share
from spark_prof.dashboards.outline import without_empty_columns
from spark_prof.dashboards.section import Column, Document, Section

if TYPE_CHECKING:
    from spark_prof.kernels.bench.results import Ceilings, Cell, LeftOut, Report
    from spark_prof.kernels.tuning import Work

_TITLES = {"dense": "Dense layers", "moe": "Mixtures of experts", "fused": "Fused passes"}


def render_bench(found: Report, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a run of the benchmark.

    Args:
        found: what was measured, on what.
        kind: text, md or json.
        width: columns of the text.
        color: whether the text is coloured.
    """
    if kind == "json":
        from spark_prof.dashboards import json_report

        return json_report.write(_record(found))
    from spark_prof.dashboards import markdown, text

    ceilings = found.ceilings
    document = Document(
        f"spark-prof kernels bench: {clean(found.machine.name)}",
        (
            ("read", bandwidth(ceilings.read.median)),
            ("copied", bandwidth(ceilings.copy.median)),
            ("an empty launch in a graph", microseconds(ceilings.launch_us.median)),
        ),
        tuple(without_empty_columns(section) for section in _sections(found) if section.rows),
    )
    return markdown.draw(document) if kind == "md" else text.draw(document, width, color)


def _sections(found: Report) -> Iterator[Section]:
    for kind, title in _TITLES.items():
        yield _times(kind, title, [cell for cell in found.cells if cell.kind == kind], found)
    yield _failures(found.cells, found.left_out)


def _times(kind: str, title: str, cells: Sequence[Cell], found: Report) -> Section:
    columns = (
        Column("Layer", "prose"),
        Column("Format"),
        Column("Size"),
        Column("Tokens", "number"),
        Column("Time", "number"),
        Column("Of read", "number"),
        Column("Floor", "number"),
        Column("Fastest other"),
        Column("Its time", "number"),
        Column("Gain", "number"),
    )
    rows = tuple(_row(cell, found.ceilings) for cell in cells)
    intro = (
        "Medians inside a CUDA graph with a cold L2. Floor: the bytes at the measured read "
        "bandwidth and one launch. Of read: the share of that bandwidth that the weights reach.",
    )
    mean = _mean([gain for cell in cells if (gain := _gain(cell))])
    told = (f"Geometric mean of the gain: {mean:.2f} x.",) if mean else ()
    return Section(kind, title, columns, rows, (*intro, *told))


def _row(cell: Cell, ceilings: Ceilings) -> tuple[str, ...]:
    ours, peer, gain = cell.ours, cell.best_peer(), _gain(cell)
    return (
        clean(cell.label),
        clean(cell.work.format),
        _size(cell.work),
        count(cell.work.tokens),
        microseconds(ours),
        share(ceilings.share(cell, ours) if ours and cell.weight_bytes else None),
        microseconds(ceilings.floor_us(cell)),
        clean(peer[0]) if peer else MISSING,
        microseconds(peer[1] if peer else None),
        f"{gain:.2f} x" if gain else MISSING,
    )


def _size(work: Work) -> str:
    size = f"{work.rows} x {work.columns}"
    return f"{size}, {work.top_k} of {work.experts}" if work.experts > 1 else size


def _gain(cell: Cell) -> float | None:
    ours, peer = cell.ours, cell.best_peer()
    return peer[1] / ours if ours and peer else None


def _mean(gains: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None


def _failures(cells: Sequence[Cell], left_out: Sequence[LeftOut]) -> Section:
    columns = (Column("Not timed"), Column("Times", "number"), Column("First reason", "prose"))
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        for result in cell.results:
            if result.failed:
                reasons.setdefault(result.contestant, []).append(result.failed)
    for shape in left_out:
        reasons.setdefault(shape.what, []).append(shape.why)
    rows = tuple(
        (clean(name), count(len(failed)), clean(failed[0])) for name, failed in reasons.items()
    )
    return Section("failures", "Not timed", columns, rows)


def _record(found: Report) -> dict[str, Any]:
    cells = []
    for cell in found.cells:
        ours = cell.ours
        cells.append(
            asdict(cell)
            | {
                "floor_us": found.ceilings.floor_us(cell),
                "share_of_read": found.ceilings.share(cell, ours) if ours else None,
                "gain": _gain(cell),
            }
        )
    return asdict(found) | {"cells": cells}
