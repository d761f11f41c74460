"""The roofline: kernels between what they need and what the GPU allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from spark_prof.analyzers.roofline.model import Ceilings, RooflineRow
from spark_prof.dashboards.about_layers import in_decoder_order
from spark_prof.dashboards.charts import label, set_style
from spark_prof.dashboards.colors import COLORS, NEUTRAL, TEXT
from spark_prof.dashboards.formats import (
    bandwidth,
    decimal_size,
    microseconds,
    operations,
    share,
)

_MOST_POINTS = 1500
_LARGEST = 44.0
_SMALLEST = 7.0
_POINTS_OF_A_LINE = 33
_Value = Callable[[RooflineRow], float]
_Places = Mapping[str, int]


@dataclass(frozen=True)
class _Line:
    """A ceiling: its points, what it is, and how it is drawn."""

    x: Sequence[float]
    y: Sequence[float]
    text: str
    dash: str


def with_need(rows: Sequence[RooflineRow]) -> tuple[RooflineRow, ...]:
    """The kernels of which a need in bytes is known, what takes the most time first."""
    known = [row for row in rows if row.needed_bytes and row.us > 0]
    return tuple(sorted(known, key=lambda row: -row.us * row.calls))[:_MOST_POINTS]


def with_intensity(rows: Sequence[RooflineRow]) -> tuple[RooflineRow, ...]:
    """The kernels of which bytes and operations are known, what takes the most time first."""
    return tuple(row for row in with_need(rows) if row.operations > 0)


def bytes_and_time(rows: Sequence[RooflineRow], ceilings: Ceilings, places: _Places) -> go.Figure:
    """Draws the bytes that a call needs against the time that it takes.

    A kernel on the line moves its bytes as fast as the memory can; above it, it is slower.

    Args:
        rows: of one phase.
        ceilings: of the GPU.
        places: of the kernels' names, as customdata of the points.
    """
    shown = with_need(rows)
    sizes = [row.needed_bytes or 1.0 for row in shown]
    ends = _around(sizes)
    lines = [
        _Line(
            ends, [x / found.value * 1e6 for x in ends], f"{name}, {bandwidth(found.value)}", dash
        )
        for name, found, dash in (
            ("measured reader" if ceilings.reached else "", ceilings.reached, "solid"),
            ("data sheet", ceilings.data_sheet, "dash"),
        )
        if found
    ]
    figure = _figure(shown, lambda row: row.needed_bytes or 1.0, lambda row: row.us, lines, places)
    set_style(figure, "Bytes that a call needs, and its time", height=470)
    _axes(figure, sizes, [row.us for row in shown], "bytes of a call", "us of a call")
    return figure


def intensity(
    rows: Sequence[RooflineRow],
    ceilings: Ceilings,
    precisions: Mapping[tuple[str, str], str],
    places: _Places,
) -> go.Figure:
    """Draws the operations of a byte against those of a second, under the ceilings of the GPU.

    Args:
        rows: of one phase.
        ceilings: of the GPU.
        precisions: of the kernels' arithmetic, by name and component.
        places: of the kernels' names, as customdata of the points.
    """
    shown = with_intensity(rows)
    used = {precisions.get((row.name, row.component), "") for row in shown}
    peaks = [(name, value) for name, value in ceilings.peaks if name in used]
    ratios = [_intensity(row) for row in shown]
    reading = ceilings.bandwidth
    bends = [value / reading.value for _, value in peaks] if reading else []
    ends = sorted([*_around([*ratios, *bends]), *bends])
    lines = []
    for name, found, dash in (
        ("measured reader", ceilings.reached, "solid"), ("data sheet", ceilings.data_sheet, "dash"),
    ):  # fmt: skip
        if found:
            top = max((value for _, value in peaks), default=math.inf)
            x = [at for at in ends if at * found.value <= top * 1.0001]
            text = f"{name}, {bandwidth(found.value)}"
            lines.append(_Line(x, [at * found.value / 1e12 for at in x], text, dash))
    for name, value in peaks:
        x = [at for at in ends if reading is None or at * reading.value >= value * 0.9999]
        text = f"{label(name)}, {operations(value)}op/s"
        lines.append(_Line(x, [value / 1e12 for _ in x], text, "dot"))
    figure = _figure(shown, _intensity, _speed, lines, places)
    set_style(figure, "Operations of a byte, and operations of a second", height=470)
    _axes(figure, ratios + bends, [_speed(row) for row in shown] + [v / 1e12 for _, v in peaks],
          "operations of a byte", "Top/s")  # fmt: skip
    return figure


def _intensity(row: RooflineRow) -> float:
    return row.operations / (row.needed_bytes or 1.0)


def _speed(row: RooflineRow) -> float:
    return row.operations / row.us / 1e6


def _figure(
    rows: Sequence[RooflineRow], x: _Value, y: _Value, lines: Sequence[_Line], places: _Places
) -> go.Figure:
    figure = go.Figure()
    for line in lines:
        figure.add_scatter(
            x=list(line.x), y=list(line.y), mode="lines", name=line.text,
            line={"color": TEXT, "dash": line.dash, "width": 1.5},
            hovertemplate=f"{line.text}<extra></extra>",
        )  # fmt: skip
    longest = max((row.us * row.calls for row in rows), default=1.0)
    for component in in_decoder_order(row.component for row in rows):
        mine = [row for row in rows if row.component == component]
        color = COLORS.get(component, NEUTRAL)
        # The area of a point is the time that the kernel takes of a step.
        size = [max(_SMALLEST, _LARGEST * math.sqrt(r.us * r.calls / longest)) for r in mine]
        figure.add_scatter(
            x=[x(row) for row in mine],
            y=[y(row) for row in mine],
            mode="markers",
            name=label(component),
            marker={"size": size, "color": color, "opacity": 0.85,
                    "line": {"color": TEXT, "width": 1}},
            unselected={"marker": {"opacity": 0.85}},
            customdata=[[places.get(row.name, -1), component] for row in mine],
            text=[_hover(row) for row in mine],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    return figure


def _hover(row: RooflineRow) -> str:
    least = "at least " if row.expected else ""
    parts = [
        label(row.name, 60),
        "; ".join(label(word, 60) for word in (row.component, row.role, row.what) if word),
        f"{microseconds(row.us)} a call, {microseconds(row.us * row.calls)} a step",
        f"{least}{decimal_size(row.needed_bytes or 0)}, {bandwidth(row.bandwidth)}",
        f"floor {microseconds(row.floor_us)}, {share(row.of_reached)} of the reader",
    ]
    return "<br>".join(parts)


def _around(values: Sequence[float]) -> list[float]:
    """Points of a line that goes beyond all values, as far apart on a logarithmic axis."""
    low, high = _decades(values)
    step = (high - low) / (_POINTS_OF_A_LINE - 1)
    return [10 ** (low + place * step) for place in range(_POINTS_OF_A_LINE)]


def _decades(values: Sequence[float]) -> tuple[float, float]:
    some = [value for value in values if value > 0] or [1.0]
    return math.log10(min(some)) - 0.3, math.log10(max(some)) + 0.3


def _axes(
    figure: go.Figure, x: Sequence[float], y: Sequence[float], x_title: str, y_title: str
) -> None:
    log = {"type": "log", "dtick": 1, "exponentformat": "SI"}
    figure.update_xaxes(**log, range=_decades(x), title={"text": x_title})
    figure.update_yaxes(**log, range=_decades(y), title={"text": y_title})
    figure.update_layout(
        showlegend=True,
        legend={"itemsizing": "constant"},
        hovermode="closest",
        clickmode="event+select",
    )
