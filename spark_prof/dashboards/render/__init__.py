"""Every format in which a document can be drawn; a renderer is imported when it is first used.

Plotly takes most of a second to import, and only HTML needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.charts import Plot
from spark_prof.dashboards.section import Document


def draw(
    document: Callable[[], Document],
    record: Callable[[], Any],
    kind: str,
    width: int = 100,
    color: bool = False,
    figures: Callable[[], Mapping[str, Plot]] = dict,
) -> str:
    """Draws a document as text, md or html, or what JSON has of it.

    The text has `width` columns; HTML has the figures, by the section in which each stands.
    """
    if kind == "json":
        from spark_prof.dashboards.render import json_report

        return json_report.write(record())
    if kind == "html":
        from spark_prof.dashboards.render import html_page

        return html_page.draw(document(), figures())
    if kind == "md":
        from spark_prof.dashboards.render import markdown

        return markdown.draw(document())
    from spark_prof.dashboards.render import terminal

    return terminal.draw(document(), width, color)


def render_report(
    report: Report,
    kind: str,
    width: int = 100,
    color: bool = False,
    *,
    sections: Collection[str] | None = (),
) -> str:
    """Draws a report in a format; of text below 100 columns tables lose their least columns.

    Args:
        sections: the ids of those to have, but in JSON; None for all, none for the short report,
            for which HTML has all.
    """
    from spark_prof.dashboards import outline
    from spark_prof.dashboards.render import json_report
    from spark_prof.dashboards.short_report import short_report

    columns = max((width - 50) // 10, 2) if kind == "text" else None

    def document() -> Document:
        if kind != "html" and sections is not None and not sections:
            return short_report(report)
        return outline.outline(report, layer_columns=columns, only=sections or None)

    def record() -> dict[str, Any]:
        return json_report.record_of(report)

    return draw(document, record, kind, width, color, lambda: outline.figures(report))


RENDERERS: Mapping[str, Callable[[Report], str]] = {
    kind: partial(render_report, kind=kind) for kind in ("text", "md", "html", "json")
}
"""From the name of a format, as `--format` takes it, to what draws a report in it."""
