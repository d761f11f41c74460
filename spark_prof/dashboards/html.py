"""Draws a report as one HTML file that needs no network: styles, data and plotly.js are inside.

Everything that comes from the report is escaped, and a content policy forbids the page to load
anything, so that a hostile name in a foreign trace stays a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

import plotly.graph_objects as go
import plotly.io

from spark_prof.analyzers.model import Report
from spark_prof.dashboards import charts
from spark_prof.dashboards.formats import shorten
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.section import Cell, Column, Document, Section, without_bars
from spark_prof.dashboards.style import STYLE

__all__ = ["draw", "render"]

_NAME_WIDTH = 72
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_CHARTS: dict[str, Callable[[Report], go.Figure]] = {
    "components": charts.component_bars,
    "layers": charts.layer_heatmap,
    "books": charts.books_waterfall,
}
"""The figure that stands in a section, by the section's id."""


def render(report: Report) -> str:
    """Draws the report as one self-contained page."""
    document = outline(report)
    drawn = {s.id: _CHARTS[s.id](report) for s in document.sections if s.id in _CHARTS}
    return draw(document, drawn)


def draw(document: Document, figures: Mapping[str, go.Figure]) -> str:
    """Draws any document as one self-contained page, with a figure in the sections that have one.

    Args:
        document: what to draw.
        figures: by the section's id, in the order of the sections.
    """
    headline = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in document.headline
    )
    # plotly.js is megabytes: only the first figure brings it.
    first = next(iter(figures), None)
    sections = "".join(
        _section(section, figures.get(section.id), section.id == first)
        for section in document.sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(document.title)}</h1>\n"
        + (f'<dl class="headline">{headline}</dl>\n' if headline else "")
        + f"{sections}</main>\n</body>\n</html>\n"
    )


def _section(section: Section, drawn: go.Figure | None, with_plotly: bool) -> str:
    intro = f"<p>{escape(' '.join(section.intro))}</p>\n" if section.intro else ""
    figure = ""
    if drawn is not None:
        figure = plotly.io.to_html(
            drawn,
            full_html=False,
            include_plotlyjs=with_plotly,
            # Without an id of its own a figure gets a random one, and no two renderings agree.
            div_id=f"chart-{section.id}",
            config={"displayModeBar": False, "responsive": True},
        )
        figure = f'<div class="chart">{figure}</div>\n'
    body = _list(section) if len(section.columns) == 1 else _table(section)
    return (
        f'<section id="{escape(section.id)}">\n<h2>{escape(section.title)}</h2>\n'
        f"{intro}{figure}{body}</section>\n"
    )


def _list(section: Section) -> str:
    items = "".join(f"<li>{escape(str(row[0]))}</li>\n" for row in section.rows)
    return f"<ul>\n{items}</ul>\n"


def _table(section: Section) -> str:
    section = without_bars(section)
    head = "".join(
        f'<th scope="col" class="{column.kind}">{escape(column.title)}</th>'
        for column in section.columns
    )
    titled = any(column.title for column in section.columns)
    rows = "".join(
        f"<tr>{''.join(map(_cell, row, section.columns))}</tr>\n" for row in section.rows
    )
    return (
        '<div class="wide"><table>\n'
        + (f"<thead><tr>{head}</tr></thead>\n" if titled else "")
        + f"<tbody>\n{rows}</tbody>\n</table></div>\n"
    )


def _cell(cell: Cell, column: Column) -> str:
    cell = str(cell)
    if column.kind != "name":
        return f'<td class="{column.kind}">{escape(cell)}</td>'
    if len(cell) <= _NAME_WIDTH:
        return f'<td class="name"><code>{escape(cell)}</code></td>'
    short = escape(shorten(cell, _NAME_WIDTH))
    return (
        f'<td class="name"><details><summary title="{escape(cell)}"><code>{short}</code></summary>'
        f"<code>{escape(cell)}</code></details></td>"
    )
