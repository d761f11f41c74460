"""Every format in which a document can be drawn; a renderer is imported when it is first used.

Plotly takes most of a second to import, and only HTML needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.charts import Plot
from spark_prof.dashboards.render.limits import bounded
from spark_prof.dashboards.section import Document
from spark_prof.dashboards.section import Layout as Layout


def draw(
    document: Callable[[], Document],
    record: Callable[[], Any],
    layout: Layout,
    figures: Callable[[], Mapping[str, Plot]] = dict,
) -> str:
    """Draws a document, or what JSON has of it.

    HTML has the figures, by the section in which each stands.

    Raises:
        CommandError: one of the sections that are wanted is not there.
    """
    if layout.kind == "json":
        from spark_prof.dashboards.render import json_report

        return json_report.write(record(), layout.bounds)
    bounded_document = bounded(document(), layout.bounds)
    if layout.kind == "html":
        from spark_prof.dashboards.render import html_page

        return html_page.draw(bounded_document, figures())
    if layout.kind == "md":
        from spark_prof.dashboards.render import markdown

        return markdown.draw(bounded_document)
    from spark_prof.dashboards.render import terminal

    return terminal.draw(bounded_document, layout.width, layout.color)


def render_report(report: Report, layout: Layout, *, whole: bool = False) -> str:
    """Draws a report in a format.

    Args:
        whole: every section; without it, and where none is asked for, text and Markdown have the
            short report.
    """
    from spark_prof.dashboards import outline
    from spark_prof.dashboards.render import json_report
    from spark_prof.dashboards.short_report import short_report

    columns = max((layout.width - 50) // 10, 2) if layout.kind == "text" else None

    def document() -> Document:
        if layout.kind == "html" or whole or layout.bounds.sections:
            return outline.outline(report, layer_columns=columns, only=layout.bounds.sections)
        return short_report(report)

    record = partial(json_report.record_of, report, layout.bounds.sections)
    figures = partial(outline.figures, report, layout.bounds.sections)
    return draw(document, record, layout, figures)


RENDERERS: Mapping[str, Callable[[Report], str]] = {
    kind: partial(render_report, layout=Layout(kind)) for kind in ("text", "md", "html", "json")
}
"""From the name of a format, as `--format` takes it, to what draws a report in it."""
