"""Figures of a parallel run: what each rank does in a step, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go

from spark_prof.analyzers.model import RankRow, Report
from spark_prof.analyzers.views.step_series import HeldUp, held_up
from spark_prof.dashboards.chart_axes import time_ticks
from spark_prof.dashboards.charts import label, set_style
from spark_prof.dashboards.colors import COLORS, NEUTRAL, SHADES
from spark_prof.dashboards.formats import counted, microseconds

_MOST_RANKS = 256
_MOST_BARS = 12

_PARTS: tuple[tuple[str, str, str, Callable[[RankRow], float]], ...] = (
    ("other kernels", SHADES[1], "", lambda row: _other_kernels_us(row)),
    ("transfer", COLORS["collective"], "", lambda row: row.transfer_us or 0.0),
    ("waiting", SHADES[0], "/", lambda row: row.wait_us or 0.0),
    ("gaps", NEUTRAL, ".", lambda row: row.gap_us or 0.0),
)
"""What a rank's step consists of: name, colour, pattern, and its time in all steps."""


def rank_bars(report: Report) -> go.Figure:
    """Draws what each rank does in a mean step; every bar carries its rank as customdata."""
    rows = [row for row in report.ranks if row.steps][:_MOST_RANKS]
    names = [f"rank {row.rank}" for row in rows]
    figure = go.Figure()
    for name, color, pattern, part in _PARTS:
        times = [part(row) / row.steps for row in rows]
        if not any(times):
            continue
        figure.add_bar(
            orientation="h",
            y=names,
            x=times,
            name=name,
            customdata=[row.rank for row in rows],
            marker={
                "color": color,
                "line": {"width": 0},
                "pattern": {"shape": pattern, "fillmode": "replace", "size": 6},
            },
            text=[microseconds(us) for us in times],
            textposition="none",
            hovertemplate=f"%{{y}}, {name}: %{{text}}<extra></extra>",
        )
    set_style(figure, "What each rank does in a mean step", height=120 + 24 * max(len(rows), 2))
    most = max((sum(part(row) for *_, part in _PARTS) / row.steps for row in rows), default=1.0)
    legend = {"orientation": "h", "x": 0.92, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(barmode="stack", showlegend=True, legend=legend)
    figure.update_xaxes(range=[0, 1.02 * most], **time_ticks(most))
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


def waits_for_ranks(report: Report) -> go.Figure:
    """Draws how long the others waited for each rank, over the steps.

    Cells in which a rank came last carry the worst of their steps as customdata, after the rank
    that has that number for it.
    """
    ranks = [row.rank for row in report.ranks][:_MOST_RANKS]
    found = held_up(report.collectives.slow_steps, ranks)
    names = [f"rank {rank}" for rank in ranks]
    columns = [
        f"{first:,}" if first == last else f"{first:,} to {last:,}"
        for first, last in zip(found.first_step.tolist(), found.last_step.tolist(), strict=True)
    ]
    figure = go.Figure(
        go.Heatmap(
            x=list(range(len(columns))),
            y=names,
            z=found.us,
            hoverinfo="skip",
            colorscale="Cividis",
            zmin=0,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": "us a step"}, "thickness": 12, "outlinewidth": 0},
        )
    )
    _marks(figure, found, names, columns)
    set_style(
        figure, "How long the others waited for each rank", height=140 + 24 * max(len(ranks), 2)
    )
    every = max(1, len(columns) // 8)
    places = list(range(0, len(columns), every))
    figure.update_xaxes(
        tickvals=places, ticktext=[columns[place] for place in places], title={"text": "steps"}
    )
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False)
    return figure


def waits_by_collective(report: Report) -> go.Figure:
    """Draws where ranks wait: by kind of collective, what ran before it, and its layer."""
    items = sorted(report.collectives.items, key=lambda item: -(item.wait_us + item.transfer_us))
    shown, steps = items[:_MOST_BARS], max(report.collectives.steps, 1)
    names = []
    for number, item in enumerate(shown, 1):
        layer = "" if item.layer is None else f", layer {item.layer}"
        after = f" after {label(item.after)}" if item.after else ""
        names.append(f"{number}. {label(item.kind)}{after}{layer}")
    figure = go.Figure()
    waits = [item.wait_us / steps for item in shown]
    transfers = [item.transfer_us / steps for item in shown]
    for place, times in ((2, waits), (1, transfers)):
        name, color, pattern, _ = _PARTS[place]
        figure.add_bar(
            orientation="h",
            y=names,
            x=times,
            name=name,
            marker={
                "color": color,
                "line": {"width": 0},
                "pattern": {"shape": pattern, "fillmode": "replace", "size": 6},
            },
            text=[microseconds(us) for us in times],
            textposition="none",
            hovertemplate=f"%{{y}}, {name}: %{{text}}<extra></extra>",
        )
    rest = f", the {len(shown)} longest of {len(items)}" if len(items) > len(shown) else ""
    set_style(figure, f"Collectives of a mean step{rest}", height=120 + 26 * max(len(shown), 2))
    most = max((a + b for a, b in zip(waits, transfers, strict=True)), default=1.0)
    legend = {"orientation": "h", "x": 0.92, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(barmode="stack", showlegend=True, legend=legend)
    figure.update_xaxes(range=[0, 1.05 * most], **time_ticks(most))
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


def _marks(figure: go.Figure, found: HeldUp, names: list[str], columns: list[str]) -> None:
    """Lays clear marks over the cells: a heat map tells nobody what was clicked."""
    rows, places = np.nonzero(found.last)
    cells = list(zip(rows.tolist(), places.tolist(), strict=True))
    figure.add_scatter(
        x=[place for _, place in cells],
        y=[names[row] for row, _ in cells],
        mode="markers",
        marker={"size": 16, "symbol": "square", "color": "rgba(0,0,0,0)"},
        customdata=[(found.leads[row], int(found.worst[row, place])) for row, place in cells],
        text=[
            f"{names[row]}, steps {columns[place]}: last in "
            f"{counted(int(found.last[row, place]), 'step')}, the others waited "
            f"{microseconds(float(found.us[row, place]))} a step"
            for row, place in cells
        ],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )


def _other_kernels_us(row: RankRow) -> float:
    return max(row.kernels_us - (row.wait_us or 0.0) - (row.transfer_us or 0.0), 0.0)
