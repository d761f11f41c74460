"""The figures of a result of `spark-prof ab`.

Every string from the result goes through `charts.label`, as plotly reads some HTML.
"""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from spark_prof.ab.outcome import floor_of
from spark_prof.ab.result import Result
from spark_prof.analyzers.swap_gain.model import Attribution
from spark_prof.dashboards.ab_answer import what_ran
from spark_prof.dashboards.charts import bars, label, set_style
from spark_prof.dashboards.colors import COLORS, LINES, NEUTRAL, TEXT
from spark_prof.dashboards.sections.layer_section import in_decoder_order

_GAIN = "#0072B2"
_SMALL = 0.002
"""Components that change by a smaller share of the step are drawn together."""


def figures(result: Result) -> Mapping[str, go.Figure]:
    """The figures by the id of the section in which they stand."""
    drawn = {}
    if any(run.estimate.gain for run in result.runs):
        drawn["ab_gains"] = gain_points(result)
    for found in result.attributions:
        drawn[f"ab_components_{found.batch_size}"] = waterfall(found)
        if any(row.layer is not None for row in found.layers):
            drawn[f"ab_layers_{found.batch_size}"] = layer_bars(found)
    return drawn


def gain_points(result: Result) -> go.Figure:
    """Draws the gain of each run with its interval, and how far side a was from itself."""
    runs = [(run, gain) for run in result.runs if (gain := run.estimate.gain)]
    figure = go.Figure()
    for index, (run, _) in enumerate(runs):
        floor = floor_of(run, result.aa)
        if floor:
            figure.add_shape(
                type="rect",
                x0=index - 0.5,
                x1=index + 0.5,
                y0=1 / (1 + floor),
                y1=1 + floor,
                fillcolor=LINES,
                line={"width": 0},
                layer="below",
            )
    figure.add_hline(y=1, line={"color": NEUTRAL, "width": 1, "dash": "dot"})
    figure.add_trace(
        go.Scatter(
            mode="markers+text",
            x=list(range(len(runs))),
            y=[gain.value for _, gain in runs],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [gain.high - gain.value for _, gain in runs],
                "arrayminus": [gain.value - gain.low for _, gain in runs],
                "color": _GAIN,
                "width": 8,
            },
            marker={"color": _GAIN, "size": 9},
            text=[f"  {gain.value:.3f} x" for _, gain in runs],
            textposition="middle right",
            textfont={"color": TEXT},
            cliponaxis=False,
            hovertemplate="%{text}<extra></extra>",
        )
    )
    set_style(figure, "Gain with its 95 % interval; grey: a against itself", height=320)
    figure.update_xaxes(
        tickvals=list(range(len(runs))),
        ticktext=[label(what_ran(run)) for run, _ in runs],
        range=[-0.5, len(runs) - 0.5],
        showgrid=False,
    )
    figure.update_yaxes(ticksuffix=" x", nticks=6)
    return figure


def waterfall(found: Attribution) -> go.Figure:
    """Leads from a's time of a step to b's, by component."""
    a, b, residual = found.a.corrected_us, found.b.corrected_us, 0.0
    if found.a.untraced_us is not None and found.b.untraced_us is not None:
        a, b = found.a.untraced_us, found.b.untraced_us
        residual = found.residual_us or 0.0
    rows = sorted(found.components, key=lambda row: -row.saved_us)
    shown = [row for row in rows if abs(row.saved_us) >= _SMALL * a]
    parts = [
        (label(row.component), -row.saved_us, COLORS.get(row.component, NEUTRAL)) for row in shown
    ]
    small = sum(row.saved_us for row in rows if row not in shown)
    parts.append(("smaller components", -small, NEUTRAL))
    if residual:
        parts.append(("residual", -residual, NEUTRAL))
    bases, running = [0.0], a
    for _, us, _ in parts:
        bases.append(running)
        running += us
    drawn = [("a", a, NEUTRAL), *parts, ("b", b, NEUTRAL)]
    # Plotly draws the first bar at the bottom; this is read from the top down.
    return bars("From a's step to b's", drawn[::-1], [*bases, 0.0][::-1])


def layer_bars(found: Attribution) -> go.Figure:
    """Draws what each layer saves, component by component."""
    rows = [row for row in found.layers if row.layer is not None]
    table: dict[str, dict[int, float]] = {}
    for row in rows:
        name = row.component if row.touched else "without a swap"
        by_layer = table.setdefault(name, {})
        by_layer[row.layer or 0] = by_layer.get(row.layer or 0, 0.0) + row.saved_us
    figure = go.Figure()
    for name in in_decoder_order(table):
        figure.add_trace(
            go.Bar(
                name=label(name),
                x=list(table[name]),
                y=list(table[name].values()),
                marker={"color": COLORS.get(name, NEUTRAL), "line": {"width": 0}},
                hovertemplate=f"layer %{{x}}, {label(name)}: %{{y:.2f}} us<extra></extra>",
            )
        )
    set_style(figure, "Saved in each layer", height=320)
    figure.update_layout(
        barmode="relative",
        showlegend=True,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
    )
    figure.update_xaxes(title={"text": "layer"}, showgrid=False)
    figure.update_yaxes(ticksuffix=" us", zeroline=True, zerolinecolor=LINES)
    return figure
