"""Figures of one kernel: its time by layer, how long its calls take, and their course."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from spark_prof.analyzers.views.kernel_calls import Histogram, LayerUse, Series
from spark_prof.dashboards.charts import (
    COLORS,
    LINES,
    NEUTRAL,
    TEXT,
    Plot,
    label,
    new_figure,
    set_layer_axes,
    whiskers,
)
from spark_prof.dashboards.sections.layer_section import in_decoder_order
from spark_prof.dashboards.units import count, microseconds

_MOST_LAYERS = 1000
_LEVELS = (("median_us", "median", "solid"), ("p99_us", "p99", "dot"))


def calls_by_layer(uses: Sequence[LayerUse]) -> Plot:
    """Draws the median and the 90th percentile of a call in each of the first 1,000 layers."""
    layer_uses = [use for use in uses if use.layer >= 0][:_MOST_LAYERS]
    several = len({use.component for use in layer_uses}) > 1
    title = "A call by layer: median, and up to the 90th percentile"
    figure = new_figure(title, 300, legended=several)
    for component in in_decoder_order(use.component for use in layer_uses):
        mine = [use for use in layer_uses if use.component == component]
        medians = [use.median_us for use in mine]
        upwards = whiskers(medians, medians, [use.p90_us for use in mine])
        figure.add_scatter(
            x=[use.layer for use in mine],
            y=medians,
            error_y=upwards | {"thickness": 1, "width": 3},
            mode="markers",
            name=label(component),
            marker={"color": COLORS.get(component, NEUTRAL), "size": 9,
                    "line": {"color": TEXT, "width": 1}},
            text=[f"median {microseconds(u.median_us)}, p90 {microseconds(u.p90_us)}, "
                  f"{count(u.calls)} calls" for u in mine],
            hovertemplate="layer %{x}: %{text}<extra></extra>",
        )  # fmt: skip
    highest = max((use.p90_us for use in layer_uses), default=1.0)
    lowest = min((use.median_us for use in layer_uses), default=0.0)
    set_layer_axes(figure, lowest, highest, "us")
    return figure


def call_histogram(histogram: Histogram, component: str) -> Plot:
    """Draws how many calls took how long."""
    bars = list(pairwise(histogram.edges_us.tolist()))
    texts = [f"{microseconds(low)} to {microseconds(high)}" for low, high in bars]
    if histogram.most_us > histogram.edges_us[-1]:
        texts[-1] = f"{microseconds(bars[-1][0])} or longer"
    figure = new_figure("How long its calls take", 300, bargap=0)
    figure.add_bar(
        x=[(low + high) / 2 for low, high in bars],
        width=[high - low for low, high in bars],
        y=histogram.counts.tolist(),
        marker={"color": COLORS.get(component, NEUTRAL), "line": {"width": 0}},
        text=texts,
        textposition="none",
        hovertemplate="%{text}: %{y:,} calls<extra></extra>",
    )
    for field, name, dash in _LEVELS:
        figure.add_vline(
            x=min(getattr(histogram, field), bars[-1][1]),
            line={"color": TEXT, "dash": dash, "width": 1},
            annotation={"text": name, "font": {"color": TEXT}},
        )
    figure.update_xaxes(ticksuffix=" us", showgrid=False)
    figure.update_yaxes(title={"text": "calls"})
    return figure


def calls_over_steps(series: Series, component: str) -> Plot:
    """Draws the median of a call in the course of the recording, in a band from p10 to p90."""
    color = COLORS.get(component, NEUTRAL)
    steps, medians = series.step.tolist(), series.median_us.tolist()
    lows, highs = series.low_us.tolist(), series.high_us.tolist()
    texts = [
        f"median {microseconds(median)}, p10 {microseconds(low)}, p90 {microseconds(high)}"
        for median, low, high in zip(medians, lows, highs, strict=True)
    ]
    figure = new_figure("In the course of the recording: median, p10 to p90", 300)
    edge = {"x": steps, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(y=highs, **edge)
    figure.add_scatter(y=lows, fill="tonexty", fillcolor=LINES, **edge)
    figure.add_scatter(
        x=steps,
        y=medians,
        mode="lines+markers" if len(steps) < 100 else "lines",
        line={"color": color, "width": 2},
        text=texts,
        hovertemplate="step %{x}: %{text}<extra></extra>",
    )
    highest = max(highs, default=1.0)
    figure.update_yaxes(range=[0, 1.08 * highest], title={"text": "us"})
    title = "step" if series.steps == 1 else f"step, each point {series.steps} steps"
    figure.update_xaxes(title={"text": title}, showgrid=False)
    return figure
