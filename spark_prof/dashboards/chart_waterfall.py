"""The figure of a token's time, from the memory floor to what was measured."""

from __future__ import annotations

import plotly.graph_objects as go

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.chart_axes import time_ticks
from spark_prof.dashboards.charts import label, set_style
from spark_prof.dashboards.colors import LINES, TEXT
from spark_prof.dashboards.waterfall_bars import FLOOR_COLOR, bars_of, furthest, title_of

__all__ = ["floor_waterfall"]


def floor_waterfall(report: Report) -> go.Figure:
    """Draws the parts of `views.waterfall` from the top down, each where the one before ends.

    Every bar carries the part's kind and component as customdata.
    """
    found = waterfall_of(report)
    bars = bars_of(found)
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[label(bar.name) for bar in bars],
            x=[bar.us for bar in bars],
            base=[bar.begin_us for bar in bars],
            customdata=[(bar.kind, bar.component) for bar in bars],
            marker={
                "color": [bar.color for bar in bars],
                "line": {"width": 0},
                "pattern": {
                    "shape": [bar.pattern for bar in bars],
                    "fgcolor": TEXT,
                    "fillmode": "replace",
                    "size": 6,
                },
            },
            text=[bar.text for bar in bars],
            textposition="outside",
            textfont={"color": TEXT},
            cliponaxis=False,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    )
    if found.floor_us is not None:
        figure.add_vline(x=found.floor_us, line={"color": FLOOR_COLOR, "width": 1, "dash": "dot"})
    set_style(figure, title_of(found), height=90 + 28 * max(len(bars), 2))
    figure.update_layout(margin={"r": 112})
    end = furthest(bars)
    figure.update_xaxes(range=[0, 1.002 * end], **time_ticks(end))
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed", linecolor=LINES)
    return figure
