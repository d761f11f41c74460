"""What `spark-prof kernels bench` times, and how fast the kernels are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spark_prof.analyzers.classify.classifier import is_gemm, short_name
from spark_prof.analyzers.recorded_work import RecordedRun
from spark_prof.dashboards import cells
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Column, Section, document, table
from spark_prof.dashboards.units import MISSING, bandwidth, count, counted, microseconds, share
from spark_prof.kernels.bench.shapes import DenseShape, Piece, Recorded
from spark_prof.kernels.tuning import TunedShape

if TYPE_CHECKING:
    from spark_prof.kernels.bench.request import BenchRequest
    from spark_prof.kernels.bench.results import BenchCell, BenchReport

_TITLES = {"dense": "Dense layers", "moe": "Mixtures of experts"}
_MOST_NAMES = 2


def render_work(request: BenchRequest, run: RecordedRun | None, layout: Layout) -> str:
    """Draws what a request would time, and of a recording what it ran for it."""
    rows = [(piece, tokens) for piece in request.pieces() for tokens in request.tokens]

    def of_recorded(show: Callable[[Recorded], object]) -> Callable[[tuple[Piece, int]], object]:
        return lambda row: show(request.recorded[row]) if row in request.recorded else None

    columns = (
        cells.Prose("Layer", lambda row: _label(row[0])),
        cells.Text("Format", lambda row: row[0][1]),
        cells.Text("Size", lambda row: _size(_work(*row))),
        cells.Count("Tokens", lambda row: row[1]),
        cells.Prose("Recorded", of_recorded(recorded_names), optional=True),
        cells.Time("A call", of_recorded(lambda recorded: recorded.us), optional=True),
        cells.Text(
            "Owner", of_recorded(lambda recorded: "proven" if recorded.proven else "guessed")
        ),
    )
    sections = [table("work", "Pieces of work", rows, columns if run else columns[:4])]
    if run is not None:
        sections.append(_not_raced(run))
    headline = [("pieces of work", count(len(rows)))]
    drawn = document("spark-prof kernels bench: what is timed", headline, sections)
    record = {
        "work": [
            asdict(_work(*row)) | {"label": _label(row[0]), "recorded": request.recorded.get(row)}
            for row in rows
        ],
        "not_raced": [] if run is None else [component._asdict() for component in run.left_out],
    }
    return draw(lambda: drawn, lambda: record, layout)


def _not_raced(run: RecordedRun) -> Section:
    columns = (
        cells.Text("Component", "component"),
        cells.Text("Kernels a step", lambda component: f"{component.kernels:.0f}"),
        cells.Prose("Why", "why"),
    )
    rest = sum(component.kernels for component in run.left_out)
    intro = f"{rest:.0f} of {run.kernels:.0f} kernels of a step of {run.model} are not raced."
    return table("not_raced", "Not raced", run.left_out, columns, (intro,))


def _label(piece: Piece) -> str:
    shape, _ = piece
    return shape.label if isinstance(shape, DenseShape) else shape.model


def _work(piece: Piece, tokens: int) -> TunedShape:
    shape, form = piece
    if isinstance(shape, DenseShape):
        return TunedShape("dense", form, shape.rows, shape.columns, tokens)
    sizes = (2 * shape.intermediate, shape.hidden, tokens, shape.experts, shape.top_k)
    return TunedShape("moe", form, *sizes)


def recorded_names(recorded: Recorded) -> str:
    """The names of a recorded run's matrix products, and how many other kernels it had."""
    names = list(dict.fromkeys(short_name(name) for name in recorded.kernels if is_gemm(name)))
    listed_names = names[:_MOST_NAMES] or [short_name(recorded.kernels[0])]
    products = sum(is_gemm(name) for name in recorded.kernels) or 1
    rest = len(recorded.kernels) - products
    return " + ".join(listed_names) + (f" and {counted(rest, 'other')}" if rest else "")


def render_bench(report: BenchReport, layout: Layout, run: RecordedRun | None = None) -> str:
    """Draws a run of the benchmark in a format, of the layers of a recorded run if there is one."""
    headline = (
        ("read", bandwidth(report.ceilings.read.median)),
        ("copied", bandwidth(report.ceilings.copy.median)),
        ("an empty launch in a graph", microseconds(report.ceilings.launch_us.median)),
    )
    sections = [*(_times(kind, report) for kind in _TITLES), _not_timed(report)]
    record = asdict(report) | {"cells": [_timed(cell, report) for cell in report.cells]}
    if run is not None:
        sections.append(_not_raced(run))
        record["not_raced"] = [kind._asdict() for kind in run.left_out]
    drawn = document(f"spark-prof kernels bench: {report.machine.name}", headline, sections)
    return draw(lambda: drawn, lambda: record, layout)


def _times(kind: str, report: BenchReport) -> Section:
    timed = [cell for cell in report.cells if cell.kind == kind]
    searched = any(cell.before_us is not None for cell in timed)
    recorded = any(cell.recorded for cell in timed)
    beside = (
        cells.Prose("Recorded", lambda cell: cell.recorded and recorded_names(cell.recorded)),
        cells.Time("A call", lambda cell: cell.recorded and cell.recorded.us),
    )
    columns = (
        cells.Prose("Layer", "label"),
        cells.Text("Format", "work.format"),
        cells.Text("Size", lambda cell: _size(cell.work)),
        cells.Count("Tokens", "work.tokens"),
        *((cells.Time("Before", "before_us"),) if searched else ()),
        cells.Time("Time", "ours"),
        cells.Share("Of read", lambda cell: _of_read(cell, report) if cell.weight_bytes else None),
        cells.Time("Floor", report.ceilings.floor_us),
        *((_nodes_column(report),) if any(map(_priced, timed)) else ()),
        cells.Text("Fastest other", lambda cell: (cell.best_peer() or (MISSING,))[0]),
        cells.Time("Its time", lambda cell: (cell.best_peer() or (None, None))[1]),
        cells.Times("Gain", lambda cell: _gain(cell) or None),
        *(beside if recorded else ()),
    )
    intro = [
        "Medians inside a CUDA graph with a cold L2. Floor: the bytes at the measured read "
        "bandwidth and one launch. Of read: the share of that bandwidth that the weights reach."
    ]
    if any(map(_priced, timed)):
        intro.append(
            "Nodes: the kernels of a call, whose price is in the floor in place of one launch, and "
            "its share of what the call takes beyond its bytes."
        )
    if searched:
        intro.append(
            "Before: with the configuration that was known or the default, in the same race as the "
            "best one found; a dash where there was no time to search."
        )
    if gains := [gain for cell in timed if (gain := _gain(cell))]:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        intro.append(f"Geometric mean of the gain: {mean:.2f} x.")
    if recorded:
        intro.append(
            "Recorded: what the recording ran, and its time in that run, which is no competitor's."
        )
    return table(kind, _TITLES[kind], timed, columns, intro)


def _size(work: TunedShape) -> str:
    size = f"{work.rows} x {work.columns}"
    return f"{size}, {work.top_k} of {work.experts}" if work.experts > 1 else size


def _gain(cell: BenchCell) -> float | None:
    peer = cell.best_peer()
    return peer[1] / cell.ours if cell.ours and peer else None


def _of_read(cell: BenchCell, report: BenchReport) -> float | None:
    return report.ceilings.share(cell, cell.ours) if cell.ours else None


def _priced(cell: BenchCell) -> bool:
    result = cell.result(cell.subject)
    return result is not None and result.nodes is not None


def _nodes_column(report: BenchReport) -> Column:
    """How many nodes a call has, and their share of what it takes beyond its bytes."""

    def text(cell: BenchCell) -> str | None:
        result = cell.result(cell.subject)
        if result is None or result.nodes is None:
            return None
        of_distance = report.ceilings.nodes_of_distance(cell)
        return f"{result.nodes:.3g}" + ("" if of_distance is None else f", {share(of_distance)}")

    return cells.Text("Nodes", text, missing=MISSING)


def _not_timed(report: BenchReport) -> Section:
    reasons: dict[str, list[str]] = defaultdict(list)
    for result in (result for cell in report.cells for result in cell.results):
        if result.failed:
            reasons[result.contestant].append(result.failed)
    for shape in report.left_out:
        reasons[shape.what].append(shape.why)
    columns = (
        cells.Text("Not timed", lambda pair: pair[0]),
        cells.Count("Times", lambda pair: len(pair[1])),
        cells.Prose("First reason", lambda pair: pair[1][0]),
    )
    return table("failures", "Not timed", reasons.items(), columns)


def _timed(cell: BenchCell, report: BenchReport) -> dict[str, Any]:
    return asdict(cell) | {
        "floor_us": report.ceilings.floor_us(cell),
        "bytes_us": report.ceilings.bytes_us(cell),
        "nodes_of_distance": report.ceilings.nodes_of_distance(cell),
        "share_of_read": _of_read(cell, report),
        "gain": _gain(cell),
    }
