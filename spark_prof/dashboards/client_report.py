"""A small report of load generators' results alone, without a recording beside them."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.clients.client_comparison import client_row
from spark_prof.dashboards import about_clients
from spark_prof.dashboards.formats import clean, shorten
from spark_prof.dashboards.outline import without_empty_columns
from spark_prof.dashboards.section import Document
from spark_prof.traces.benchmarks.result import BenchmarkResult

_LONGEST_TITLE = 120


def render_clients(results: Sequence[BenchmarkResult], kind: str) -> str:
    """Draws what load generators measured.

    Args:
        results: at least one result.
        kind: text, md, html or json.
    """
    if kind == "json":
        return _json(results)
    document = _document(results)
    # Plotly takes most of a second to import, and only HTML needs it.
    if kind == "html":
        from spark_prof.dashboards import html

        return html.draw(document, {})
    from spark_prof.dashboards import markdown, text

    return markdown.draw(document) if kind == "md" else text.draw(document)


def _document(results: Sequence[BenchmarkResult]) -> Document:
    rows = [client_row(run) for result in results for run in result.runs]
    sources = ", ".join(result.source for result in results)
    sections = (about_clients.runs(rows), about_clients.remarks(rows, _lost(results)))
    return Document(
        f"spark-prof: {shorten(clean(sources), _LONGEST_TITLE)}",
        (),
        tuple(without_empty_columns(section) for section in sections if section.rows),
    )


def _json(results: Sequence[BenchmarkResult]) -> str:
    from spark_prof.dashboards import json_report

    rows = [client_row(run) for result in results for run in result.runs]
    return json_report.write(
        {
            "schema": json_report.SCHEMA,
            "sources": [result.source for result in results],
            "clients": json_report.client_rows(rows),
            "lost": _lost(results),
        }
    )


def _lost(results: Sequence[BenchmarkResult]) -> list[str]:
    """What the formats do not tell, once each."""
    return list(dict.fromkeys(line for result in results for line in result.lost))
