"""A small report of load generators' results alone, without a recording beside them."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.clients.client_comparison import client_row
from spark_prof.dashboards.render import WHOLE, Bounds, draw
from spark_prof.dashboards.render.json_report import SCHEMA
from spark_prof.dashboards.section import document
from spark_prof.dashboards.sections import client_section
from spark_prof.dashboards.units import shorten
from spark_prof.traces.benchmarks.load_test import BenchmarkResult


def render_clients(
    results: Sequence[BenchmarkResult], kind: str, width: int = 100, color: bool = False,
    bounds: Bounds = WHOLE,
) -> str:  # fmt: skip
    """Draws what load generators measured: at least one result."""
    rows = [client_row(run) for result in results for run in result.runs]
    sources = [result.source for result in results]
    # What the formats do not tell, once each.
    lost = list(dict.fromkeys(line for result in results for line in result.lost))
    record = {"schema": SCHEMA, "sources": sources, "clients": rows, "lost": lost}
    title = f"spark-prof: {shorten(', '.join(sources), 120)}"
    sections = (client_section.runs(rows), client_section.remarks(rows, lost))
    drawn = document(title, (), sections)
    return draw(lambda: drawn, lambda: record, kind, width, color, bounds=bounds)
