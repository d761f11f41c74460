"""Which figures a report has: the HTML report, the notebook and the documentation take them here.

Each is named after the section of the report in which it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import plotly.graph_objects as go

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.chart_roofline import bytes_and_time
from spark_prof.dashboards.chart_waterfall import floor_waterfall
from spark_prof.dashboards.charts import bars, component_bars, layer_heatmap
from spark_prof.dashboards.outline import outline


def _kernels_and_memory(report: Report) -> go.Figure:
    """Draws the kernels of a mean decode step beside the memory's speed."""
    found = report.roofline
    phase = found.decode if found else None
    if found is None or phase is None:
        return bars("No kernels", [], [])
    drawn = bytes_and_time(phase.rows, found.ceilings, {})
    # Beside the figure the names would take half of a phone's width.
    drawn.update_layout(legend={"orientation": "h", "yanchor": "top", "y": -0.2})
    return drawn


FIGURES: Mapping[str, Callable[[Report], go.Figure]] = {
    "waterfall": floor_waterfall,
    "components": component_bars,
    "layers": layer_heatmap,
    "roofline": _kernels_and_memory,
}


def figures(report: Report) -> dict[str, go.Figure]:
    """The figures of a report by name, in the order in which it is read.

    A figure without anything to show is left out.
    """
    sections = (section.id for section in outline(report).sections)
    return {name: FIGURES[name](report) for name in sections if name in FIGURES}
