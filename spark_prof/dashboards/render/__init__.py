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
from spark_prof.dashboards.section import WHOLE as WHOLE
from spark_prof.dashboards.section import Bounds as Bounds
from spark_prof.dashboards.section import Document


def draw(
    document: Callable[[], Document],
    record: Callable[[], Any],
    kind: str,
    width: int = 100,
    color: bool = False,
    figures: Callable[[], Mapping[str, Plot]] = dict,
    *,
    bounds: Bounds = WHOLE,
) -> str:
    """Draws a document as text, md or html, or what JSON has of it.

    The text has `width` columns; HTML has the figures, by the section in which each stands.

    Raises:
        CommandError: one of the sections that are wanted is not there.
    """
    if kind == "json":
        from spark_prof.dashboards.render import json_report

        return json_report.write(record(), bounds)
    found = bounded(document(), bounds)
    if kind == "html":
        from spark_prof.dashboards.render import html_page

        return html_page.draw(found, figures())
    if kind == "md":
        from spark_prof.dashboards.render import markdown

        return markdown.draw(found)
    from spark_prof.dashboards.render import terminal

    return terminal.draw(found, width, color)


def render_report(
    report: Report,
    kind: str,
    width: int = 100,
    color: bool = False,
    bounds: Bounds = WHOLE,
    *,
    whole: bool = False,
) -> str:
    """Draws a report in a format; of text below 100 columns tables lose their least columns.

    Args:
        whole: every section; without it, and where none is asked for, text and Markdown have the
            short report.
    """
    from spark_prof.dashboards import outline
    from spark_prof.dashboards.render import json_report
    from spark_prof.dashboards.short_report import short_report

    columns = max((width - 50) // 10, 2) if kind == "text" else None

    def document() -> Document:
        if kind == "html" or whole or bounds.sections:
            return outline.outline(report, layer_columns=columns)
        return short_report(report)

    record = partial(json_report.record_of, report)
    figures = partial(outline.figures, report)
    return draw(document, record, kind, width, color, figures, bounds=bounds)


RENDERERS: Mapping[str, Callable[[Report], str]] = {
    kind: partial(render_report, kind=kind) for kind in ("text", "md", "html", "json")
}
"""From the name of a format, as `--format` takes it, to what draws a report in it."""
