"""Draws a report as one HTML file that needs no network: styles, data and plotly.js are inside.

Everything that comes from the report is escaped, and a content policy forbids the page to load
anything, so that a hostile name in a foreign trace stays a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import plotly.graph_objects as go

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.figures import figures as figures_of
from spark_prof.dashboards.html_figure import place, script
from spark_prof.dashboards.html_section import draw_section
from spark_prof.dashboards.limits import shortened
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.section import Document, cleaned
from spark_prof.dashboards.style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_MOST_BYTES = 600_000
"""Of the tables. With plotly.js, 4.8 MB, and the figures a page stays below 6 MB."""
_MANY_SECTIONS = 5
"""A page with as many has a table of contents."""
# A closed <details> and a figure as wide as the screen would print as they stand. Tables with many
# columns have no room for whole names; the same names stand in others.
_PRINTING = """\
<script>
addEventListener("beforeprint", () => {
  document.querySelectorAll("table:not(.broad) details:not([open])").forEach((one) => {
    one.open = true;
    one.className = "opened";
  });
  document.querySelectorAll(".js-plotly-plot").forEach((one) => Plotly.relayout(one, {width: 690}));
});
addEventListener("afterprint", () => {
  document.querySelectorAll("details.opened").forEach((one) => {
    one.open = false;
    one.className = "";
  });
  document.querySelectorAll(".js-plotly-plot").forEach((one) =>
    Plotly.relayout(one, {width: null, autosize: true}));
});
</script>
"""


def render(report: Report) -> str:
    """Draws the report as one self-contained page."""
    return draw(outline(report), figures_of(report))


def draw(document: Document, figures: Mapping[str, go.Figure]) -> str:
    """Draws any document as one self-contained page, with a figure in the sections that have one.

    Args:
        document: what to draw; of very long tables the first rows.
        figures: by the section's id, in the order of the sections.
    """
    document = shortened(
        cleaned(document), lambda tables: _bytes(_sections(tables, {})) <= _MOST_BYTES
    )
    shown = {s.id: figures[s.id] for s in document.sections if s.id in figures}
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{STYLE}</style>\n</head>\n"
        f"<body>\n{_contents(document)}<main>\n<h1>{escape(document.title)}</h1>\n"
        f"{_headline(document)}{_sections(document, shown)}</main>\n"
        f"{script(shown)}{_PRINTING}</body>\n</html>\n"
    )


def _contents(document: Document) -> str:
    if len(document.sections) < _MANY_SECTIONS:
        return ""
    links = "".join(
        f'<li><a href="#{escape(section.id)}">{escape(section.title)}</a></li>\n'
        for section in document.sections
    )
    return f'<nav aria-label="Contents">\n<ol>\n{links}</ol>\n</nav>\n'


def _headline(document: Document) -> str:
    figures = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in document.headline
    )
    caveats = "".join(f'<p class="caveat">{escape(text)}</p>\n' for text in document.caveats)
    return (f'<dl class="headline">{figures}</dl>\n' if figures else "") + caveats


def _sections(document: Document, figures: Mapping[str, go.Figure]) -> str:
    return "".join(
        draw_section(section, place(section.id, figures[section.id]))
        if section.id in figures
        else draw_section(section)
        for section in document.sections
    )


def _bytes(text: str) -> int:
    return len(text.encode())
