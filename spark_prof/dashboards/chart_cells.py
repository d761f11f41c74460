"""Figures of layers: the map of layers and components, and layers that should be alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_prof.analyzers.views.layer_outliers import EqualLayers
from spark_prof.dashboards.charts import (
    COLORS,
    NEUTRAL,
    TEXT,
    Plot,
    add_map,
    label,
    new_figure,
    set_layer_axes,
)
from spark_prof.dashboards.sections.layer_section import in_decoder_order
from spark_prof.dashboards.units import microseconds

MOST_CELLS = 2000
NO_LAYER = "none"  # stands for the layer of what belongs to none

_LEGIBLE_CELLS = 900
_FEW_ROWS = 32
_OUTLIER = "#D55E00"
_FASTER_SLOWER = [[0.0, "#0072B2"], [0.5, "#f2f2f2"], [1.0, "#E66100"]]
_WIDEST = 0.2
"""Shares beyond this have the colour of this one: one odd cell would leave the rest alike."""


@dataclass(frozen=True)
class Cell:
    """One component in one layer."""

    layer: int
    component: str
    value: float  # microseconds, or by which share it is above its like
    text: str


def cell_map(
    cells: Sequence[Cell],
    title: str,
    *,
    shares: bool = False,
    chosen: tuple[int, str] | None = None,
) -> Plot:
    """Draws layers against components; points with (layer, component) as customdata can be chosen.

    At most `MOST_CELLS` are drawn, the first layers and those in no layer. Where they are `shares`,
    the values lie below or above 0.
    """
    names = in_decoder_order(cell.component for cell in cells)
    most = max(1, MOST_CELLS // max(len(names), 1))
    layers = sorted({cell.layer for cell in cells if cell.layer >= 0})[:most]
    rows = [*layers, *([-1] if any(cell.layer < 0 for cell in cells) else [])]
    value = {(cell.layer, cell.component): cell for cell in cells}
    grid = [[value.get((layer, name)) for name in names] for layer in rows]
    inside = [cell.value for cell in cells if cell.layer >= 0]
    most_us = max(inside or [cell.value for cell in cells], default=1.0)
    few = len(rows) * len(names) <= _LEGIBLE_CELLS
    row_height = 21 if len(rows) <= _FEW_ROWS else 16
    # Below the title stand the components, slanted where there is little room.
    figure = new_figure(
        title, 124 + min(max(row_height * len(rows), 90), 1600), margin={"t": 96},
        hovermode="closest", hoverdistance=-1, clickmode="event+select",
    )  # fmt: skip
    add_map(
        figure,
        [label(name) for name in names],
        [_row(layer) for layer in rows],
        [[cell.value if cell else None for cell in row] for row in grid],
        text=[[cell.text if cell else "" for cell in row] for row in grid],
        texttemplate="%{text}" if few else "",
        textfont={"size": 10},
        # What lies in no layer takes many times as long, and would hide how layers differ.
        zmax=most_us,
        hoverinfo="skip",
    )
    figure.update_traces(colorbar={"tickangle": 0})
    if shares:
        figure.update_traces(zmin=-_WIDEST, zmax=_WIDEST, colorscale=_FASTER_SLOWER)
        figure.update_traces(colorbar={"title": {"text": ""}, "tickformat": "+.0%"})
    _add_points(figure, [cell for row in grid for cell in row if cell])
    if chosen in value and chosen[0] in rows:
        x, y = names.index(chosen[1]), rows.index(chosen[0])
        figure.add_shape(
            type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5,
            line={"color": _OUTLIER, "width": 3},
        )  # fmt: skip
    figure.update_xaxes(
        side="top", type="category", range=[-0.5, len(names) - 0.5], showgrid=False, tickangle=-35
    )
    figure.update_yaxes(
        type="category", range=[len(rows) - 0.5, -0.5], title={"text": "layer"}, showgrid=False
    )
    return figure


def _add_points(figure: Plot, cells: Sequence[Cell]) -> None:
    """Lays invisible points on cells: Streamlit hears of clicks on points only."""
    figure.add_scatter(
        x=[label(cell.component) for cell in cells],
        y=[_row(cell.layer) for cell in cells],
        mode="markers",
        marker={"size": 16, "opacity": 0},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        customdata=[[cell.layer, cell.component] for cell in cells],
        text=[cell.text for cell in cells],
        hovertemplate="layer %{y}, %{x}: %{text}<extra></extra>",
    )


def like_layers(group: EqualLayers, odd: Sequence[int], own_us: dict[int, float]) -> Plot:
    """Draws layers that are alike as a strip, and odd ones; of those not in the group the time."""
    times = dict(zip(group.layers, group.us, strict=True)) | own_us
    usual = [layer for layer in group.layers if layer not in odd]
    marked = [layer for layer in odd if layer in times]
    color = COLORS.get(group.component, NEUTRAL)
    figure = new_figure(f"{label(group.component)}: layers that run the same", 260)
    for layers, symbol, size, shade in (
        (usual, "circle", 9, color),
        (marked, "diamond", 15, _OUTLIER if color != _OUTLIER else "#000000"),
    ):  # fmt: skip
        figure.add_scatter(
            x=layers,
            y=[times[layer] for layer in layers],
            mode="markers+text",
            marker={"symbol": symbol, "size": size, "color": shade,
                    "line": {"color": TEXT, "width": 1}},
            text=[f"layer {layer}" if symbol == "diamond" else "" for layer in layers],
            textposition="top center",
            customdata=[[layer, group.component] for layer in layers],
            hovertext=[microseconds(times[layer]) for layer in layers],
            hovertemplate="layer %{x}: %{hovertext}<extra></extra>",
        )  # fmt: skip
    figure.add_hline(
        y=group.middle_us, line={"color": TEXT, "dash": "dot", "width": 1},
        annotation={"text": f"median {microseconds(group.middle_us)}", "font": {"color": TEXT}},
        annotation_position="bottom right",
    )  # fmt: skip
    highest = max(times.values(), default=1.0)
    lowest = min(times.values(), default=0.0)
    set_layer_axes(figure, lowest, highest, "us a step")
    return figure


def _row(layer: int) -> str:
    return NO_LAYER if layer < 0 else str(layer)
