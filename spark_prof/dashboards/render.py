"""Every format in which a report can be drawn; a renderer is imported when it is first used.

Plotly takes most of a second to import, and only HTML needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from spark_prof.analyzers.model import Report


def _late(module: str) -> Callable[[Report], str]:
    def render(report: Report) -> str:
        drawn: str = import_module(f"spark_prof.dashboards.{module}").render(report)
        return drawn

    return render


RENDERERS: Mapping[str, Callable[[Report], str]] = {
    "text": _late("text"),
    "md": _late("markdown"),
    "html": _late("html"),
    "json": _late("json_report"),
}
"""From the name of a format, as `--format` takes it, to what draws it."""
