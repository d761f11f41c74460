"""Every figure, once: each function turns a report into one plotly figure.

Backgrounds are transparent and text is mid-grey, so that a figure can stand on a light or a dark
page. Plotly reads some HTML in labels: every string from the report goes through `label`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.about_layers import by_layer, in_decoder_order
from spark_prof.dashboards.colors import COLORS, LINES, NEUTRAL, TEXT
from spark_prof.dashboards.formats import clean, microseconds, shorten

_MANY_LAYERS = 150


def label(text: str, width: int = 40) -> str:
    """Makes a foreign string safe to show in a figure, where plotly would read tags and links."""
    return html.escape(shorten(clean(text), width), quote=False)


def component_bars(report: Report) -> go.Figure:
    """Draws each component's time: in the typical decode step, or over all steps without one."""
    by_decode = any(row.decode_us_per_step > 0 for row in report.components)
    figures = {
        row.name: row.decode_us_per_step if by_decode else row.us for row in report.components
    }
    names = sorted((name for name, us in figures.items() if us > 0), key=lambda name: figures[name])
    return bars(
        "Median decode step" if by_decode else "All steps",
        [(label(name), figures[name], COLORS.get(name, NEUTRAL)) for name in names],
        [0.0] * len(names),
    )


def layer_heatmap(report: Report) -> go.Figure:
    """Draws time by layer and component; what lies outside the layers is left out."""
    table = {layer: parts for layer, parts in by_layer(report).items() if layer is not None}
    rows = sorted(table)
    names = in_decoder_order(name for parts in table.values() for name in parts)
    # A dash would be a figure; None leaves the cell of a component that a layer lacks empty.
    times = [[table[layer].get(name) for name in names] for layer in rows]
    figure = go.Figure(
        go.Heatmap(
            x=[label(name) for name in names],
            y=[str(layer) for layer in rows],
            z=times,
            text=[[microseconds(us) for us in row] for row in times],
            hovertemplate="layer %{y}, %{x}: %{text}<extra></extra>",
            colorscale="Cividis",
            colorbar={"title": {"text": "us"}, "thickness": 12, "outlinewidth": 0},
            xgap=1,
            # Where a row is a pixel or two, a gap would hide it.
            ygap=1 if len(rows) <= _MANY_LAYERS else 0,
            zmin=0,
        )
    )
    # At most as high as a printed page leaves room for.
    height = 150 + min(max(14 * len(rows), 80), 640)
    set_style(figure, "Time by layer and component", height)
    figure.update_xaxes(side="bottom", tickangle=-35)
    figure.update_yaxes(autorange="reversed", type="category", title={"text": "layer"})
    return figure


def bars(title: str, drawn: Sequence[tuple[str, float, str]], bases: Sequence[float]) -> go.Figure:
    """Draws horizontal bars.

    Args:
        title: of the figure.
        drawn: from the bottom up: a safe label, us and a colour.
        bases: where each begins, us.
    """
    texts = [microseconds(us) for _, us, _ in drawn]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[name for name, _, _ in drawn],
            x=[us for _, us, _ in drawn],
            base=list(bases),
            marker={"color": [color for _, _, color in drawn], "line": {"width": 0}},
            text=texts,
            textposition="outside",
            textfont={"color": TEXT},
            cliponaxis=False,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    )
    set_style(figure, title, height=90 + 26 * max(len(drawn), 2))
    furthest = max((base + us for (_, us, _), base in zip(drawn, bases, strict=True)), default=1.0)
    # On a phone there is no room for the unit behind every number.
    figure.update_xaxes(range=[0, furthest], ticksuffix=" us", showticksuffix="last")
    figure.update_xaxes(exponentformat="none", separatethousands=True)
    figure.update_xaxes(nticks=5, tickangle=0)
    # The figures beside the longest bars stand in the margin, which stays as wide on a phone.
    figure.update_layout(margin={"r": 76})
    figure.update_yaxes(type="category", showgrid=False)
    return figure


def set_style(figure: go.Figure, title: str, height: int) -> None:
    """Gives a figure its title, its height in pixels, and the look that all have."""
    # To look for what is there already would take ten times as long.
    figure.update_layout(
        overwrite=True,
        title={"text": title, "font": {"size": 14}, "x": 0, "xref": "container", "pad": {"l": 4}},
        height=height,
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        font={"family": "system-ui, sans-serif", "size": 12, "color": TEXT},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        bargap=0.3,
        dragmode=False,
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": TEXT, "activecolor": COLORS["attention"]},
    )
    axes = {"automargin": True, "gridcolor": LINES, "zeroline": False, "fixedrange": True}
    figure.update_xaxes(axes, overwrite=True)
    figure.update_yaxes(axes | {"ticklabelstandoff": 4}, overwrite=True)
