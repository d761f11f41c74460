"""The figure of what clients waited beside what the engine's steps took."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from spark_prof.analyzers.clients.client_rows import ClientRow
from spark_prof.dashboards.about_clients import name
from spark_prof.dashboards.chart_axes import time_ticks
from spark_prof.dashboards.charts import label, set_style
from spark_prof.dashboards.colors import NEUTRAL, SHADES, TEXT
from spark_prof.dashboards.formats import microseconds

_MOST = 24
_QUANTITIES = {"output_token": "a token", "chunk": "a chunk", "first_token": "the first token"}


def clients_beside_steps(rows: Sequence[ClientRow]) -> go.Figure:
    """Draws each compared time twice: as the client saw it, and as the steps have it."""
    pairs = [
        (f"{number}. {label(name(row))}: {_QUANTITIES.get(one.quantity, 'other')}", one)
        for number, row in enumerate(rows, 1)
        for one in row.comparisons
    ][:_MOST]
    figure = go.Figure()
    for title, color, times in (
        ("client", SHADES[0], [one.client for _, one in pairs]),
        ("engine", NEUTRAL, [one.engine for _, one in pairs]),
    ):
        figure.add_bar(
            orientation="h",
            y=[text for text, _ in pairs],
            x=times,
            name=title,
            marker={"color": color, "line": {"width": 0}},
            text=[microseconds(us) for us in times],
            textposition="outside",
            textfont={"color": TEXT},
            cliponaxis=False,
            hovertemplate=f"%{{y}}, {title}: %{{text}}<extra></extra>",
        )
    set_style(figure, "What clients waited, and what steps took", height=120 + 40 * len(pairs))
    most = max((max(one.client, one.engine) for _, one in pairs), default=1.0)
    legend = {"orientation": "h", "x": 0.92, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(barmode="group", showlegend=True, legend=legend, margin={"r": 76})
    figure.update_xaxes(range=[0, 1.002 * most], **time_ticks(most))
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure
