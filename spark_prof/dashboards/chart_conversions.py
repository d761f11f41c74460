"""Figures of format conversions: what each costs a token, and in which layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from types import MappingProxyType

import plotly.graph_objects as go

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.chart_axes import time_ticks
from spark_prof.dashboards.charts import label, set_style
from spark_prof.dashboards.colors import COLORS, NEUTRAL, SHADES, TEXT
from spark_prof.dashboards.formats import microseconds
from spark_prof.vocabulary import CONVERSIONS

_MOST = 15

_LOOKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    dict(zip(CONVERSIONS, product(SHADES, ("", "/", "x")), strict=False))
)
"""Colour and pattern of each kind; the hues are the components'."""


def cost_of(row: AttributedConversion, report: Report) -> float:
    """What a conversion takes of a token, else of a mean decode step, else of all steps, in us."""
    if row.us_per_token is not None:
        return row.us_per_token
    decodes = any(other.decode_us for other in report.conversions.charged)
    return row.decode_us / max(report.steps.decode, 1) if decodes else row.us


def ranked(report: Report) -> list[AttributedConversion]:
    """The conversions that take any time, the most expensive first."""
    rows = [row for row in report.conversions.charged if cost_of(row, report) > 0]
    return sorted(rows, key=lambda row: -cost_of(row, report))


def most_expensive(report: Report) -> go.Figure:
    """Draws the conversions with what each takes, in the colour of the component that it is for.

    Each bar carries its place in `ranked` as customdata, the rest together -1.
    """
    rows = ranked(report)
    shown, rest = rows[:_MOST], rows[_MOST:]
    names = [f"{number}. {_named(row)}" for number, row in enumerate(shown, 1)]
    times = [cost_of(row, report) for row in shown]
    colors = [COLORS.get(row.component, NEUTRAL) for row in shown]
    if rest:
        names.append(f"{len(rest)} more")
        times.append(sum(cost_of(row, report) for row in rest))
        colors.append(NEUTRAL)
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=names,
            x=times,
            customdata=[*range(len(shown)), *([-1] if rest else [])],
            marker={"color": colors, "line": {"width": 0}},
            text=[microseconds(us) for us in times],
            textposition="outside",
            textfont={"color": TEXT},
            cliponaxis=False,
            hovertext=[*(label(row.name, 100) for row in shown), *(["the rest"] if rest else [])],
            hovertemplate="%{text}<br>%{hovertext}<extra></extra>",
        )
    )
    set_style(figure, f"What conversions take of {_whole(report)}", height=90 + 28 * len(names))
    most = max(times, default=1.0)
    figure.update_layout(margin={"r": 76})
    figure.update_xaxes(range=[0, 1.002 * most], **time_ticks(most))
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


def by_layer(report: Report) -> go.Figure:
    """Stacks each layer's conversions by kind: a mean decode step, or all steps without one."""
    rows = [row for row in report.conversions.layers if row.layer is not None]
    decodes = any(row.decode_us for row in rows)
    steps = max(report.steps.decode, 1) if decodes else 1
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        sums[row.kind][row.layer or 0] += (row.decode_us if decodes else row.us) / steps
    figure = go.Figure()
    for kind in sorted(sums, key=lambda kind: list(_LOOKS).index(kind) if kind in _LOOKS else -1):
        layers = sorted(sums[kind])
        times = [sums[kind][layer] for layer in layers]
        color, pattern = _LOOKS.get(kind, (NEUTRAL, ""))
        figure.add_bar(
            x=layers,
            y=times,
            name=label(kind),
            customdata=layers,
            marker={
                "color": color,
                "line": {"width": 0},
                "pattern": {"shape": pattern, "fillmode": "replace", "size": 6},
            },
            text=[microseconds(us) for us in times],
            textposition="none",
            hovertemplate=f"layer %{{x}}, {label(kind)}: %{{text}}<extra></extra>",
        )
    title = "a mean decode step" if decodes else "all steps"
    set_style(figure, f"Conversions by layer, {title}", height=300)
    totals: dict[int, float] = defaultdict(float)
    for kinds in sums.values():
        for layer, us in kinds.items():
            totals[layer] += us
    most = 1.05 * max(totals.values(), default=1.0)
    legend = {"orientation": "h", "x": 0.92, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(barmode="stack", showlegend=True, legend=legend)
    figure.update_xaxes(title={"text": "layer"}, dtick=max(1, len(totals) // 16))
    figure.update_yaxes(range=[0, most], **time_ticks(most))
    return figure


def _named(row: AttributedConversion) -> str:
    """Its kind, for whom, and its kernel; a safe label."""
    return f"{label(row.kind)} for {label(row.component)}: {label(short_name(row.name), 34)}"


def _whole(report: Report) -> str:
    if report.conversions.us_per_token is not None:
        return "a token"
    decodes = any(row.decode_us for row in report.conversions.charged)
    return "a decode step" if decodes else "all steps"
