"""The time line as a figure: a lane a row, a mark's height how much of its time something ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.analyzers.views.timeline import Timeline
from spark_prof.dashboards.chart_timeline_texts import duration, hovers, inscriptions
from spark_prof.dashboards.charts import label, set_style
from spark_prof.dashboards.colors import COLORS, NEUTRAL, PHASE_GROUNDS, TEXT
from spark_prof.dashboards.formats import share
from spark_prof.vocabulary import COMPONENTS, PHASES

_GREYS = ("#9aa2ac", "#b6bcc4")
"""Neighbours among steps and layers stay apart."""

_DARK, _LIGHT = "#16181b", "#ffffff"
_IDLE = "rgba(128, 132, 140, 0.12)"
_LANE = 0.84
_LOWEST, _HIGHEST = 0.12, 0.93
"""Heights of a mark whose time idles partly: never as high as a full one, and never none."""

_BESIDE = 0.55
"""Height of a kernel that began while another one of its stream still ran."""

PIXELS = 1000
"""How wide a range is drawn, about."""

_UNITS = ((20_000_000_000, "s", 1e9), (20_000_000, "ms", 1e6), (0, "us", 1e3))
_KEYS_A_LINE = 7


def timeline_figure(
    drawn: Timeline,
    columns: Mapping[int, KernelColumns],
    origin_ns: int,
    chosen: int | None = None,
) -> go.Figure:
    """Draws a range.

    A mark's customdata are the place of its kernel (-1 for none, and for another rank's), its
    lane, and where it begins and ends in ns after the origin.

    Args:
        drawn: the range.
        columns: by rank, for the names.
        origin_ns: begin of the recording's first kernel.
        chosen: place of a kernel of the shown rank that is pointed out.
    """
    figure = go.Figure()
    unit, ns = axis_unit(_length(drawn))
    texts = np.array(hovers(drawn, columns, origin_ns), object)
    inside = np.array(inscriptions(drawn, columns, PIXELS), object)
    marks = drawn.marks
    bars, colors = _bars(drawn), np.array(_colors(drawn), object)
    # What lies on another mark is drawn after it; else each colour is one trace.
    for above, color in sorted({*zip(bars.above.tolist(), colors.tolist(), strict=True)}):
        rows = np.flatnonzero((colors == color) & (bars.above == above))
        figure.add_bar(
            orientation="h",
            base=bars.begin[rows] / ns,
            x=bars.width[rows] / ns,
            y=(marks.lane[rows] + (_LANE - bars.height[rows]) / 2).astype(np.float32),
            width=bars.height[rows].astype(np.float32),
            marker={"color": color, "line": {"width": 0}},
            customdata=_places(drawn, rows, origin_ns),
            hovertext=texts[rows],
            hovertemplate="%{hovertext}<extra></extra>",
            text=inside[rows],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": _on(color), "size": 11},
            constraintext="inside",
        )
    _style(figure, drawn, unit, _length(drawn) / ns, origin_ns)
    _say_idle(figure, drawn, ns)
    if chosen is not None:
        _point_out(figure, drawn, columns, chosen, ns)
    return figure


def axis_unit(length_ns: int) -> tuple[str, float]:
    """The unit of the time axis of a range of this length, and how many ns it has."""
    return next((unit, ns) for least, unit, ns in _UNITS if length_ns >= least)


def _length(drawn: Timeline) -> int:
    return drawn.to_ns - drawn.from_ns


@dataclass(frozen=True)
class _Bars:
    """Where each mark is drawn: ns after the begin of the range, and shares of a lane's height."""

    begin: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]
    height: npt.NDArray[np.float64]
    above: npt.NDArray[np.bool_]
    """Whether it lies on another mark."""


def _bars(drawn: Timeline) -> _Bars:
    marks = drawn.marks
    begin = np.clip(marks.begin_ns, drawn.from_ns, drawn.to_ns)
    length = np.clip(marks.end_ns, drawn.from_ns, drawn.to_ns) - begin
    width = np.maximum(length, _least_widths(drawn))
    kernel = marks.kernel >= 0
    above = kernel & (marks.busy_ns < length)
    kinds = np.array([lane.kind in ("steps", "layers") for lane in drawn.lanes])
    busy = np.clip(marks.busy_ns / np.maximum(width, 1), _LOWEST, _HIGHEST)
    height = np.where((marks.busy_ns >= width) | kinds[marks.lane], 1.0, busy)
    height[above] = _BESIDE
    return _Bars(begin - drawn.from_ns, width, _LANE * height, above)


def _least_widths(drawn: Timeline) -> npt.NDArray[np.int64]:
    """A kernel is as wide as a pixel where the next one of its lane is two pixels away."""
    marks, pixel = drawn.marks, max(_length(drawn) // PIXELS, 1)
    least = np.zeros(len(marks), np.int64)
    for lane in range(len(drawn.lanes)):
        rows = np.flatnonzero((marks.lane == lane) & (marks.kernel >= 0))
        away = np.diff(marks.begin_ns[rows], append=drawn.to_ns + 2 * pixel)
        least[rows[away >= 2 * pixel]] = pixel
    return least


def _colors(drawn: Timeline) -> list[str]:
    marks = drawn.marks
    kinds = [drawn.lanes[lane].kind for lane in marks.lane]
    found = []
    for kind, component, first, last, phase in zip(
        kinds,
        marks.component.tolist(),
        marks.first.tolist(),
        marks.last.tolist(),
        marks.phase.tolist(),
        strict=True,
    ):
        if component >= 0:
            found.append(COLORS.get(COMPONENTS[component], NEUTRAL))
        elif kind == "steps" and phase >= 0 and PHASES[phase] in PHASE_GROUNDS:
            found.append(PHASE_GROUNDS[PHASES[phase]])
        else:
            found.append(_GREYS[first % 2] if first == last else _GREYS[0])
    return found


def _on(color: str) -> str:
    """Black or white, whichever can be read on a colour."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return _DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else _LIGHT


def _places(
    drawn: Timeline, rows: npt.NDArray[np.int64], origin_ns: int
) -> npt.NDArray[np.object_]:
    marks = drawn.marks.taken(rows)
    own = np.array([lane.kind == "stream" for lane in drawn.lanes])[marks.lane]
    columns = (
        np.where(own, marks.kernel, -1),
        marks.lane,
        marks.begin_ns - origin_ns,
        marks.end_ns - origin_ns,
    )
    # Plotly would send an array of numbers in a form that a selection does not give back.
    return np.array(columns).T.astype(object)


def _style(figure: go.Figure, drawn: Timeline, unit: str, length: float, origin_ns: int) -> None:
    after = drawn.from_ns - origin_ns
    where = f"{duration(abs(after))} {'after' if after >= 0 else 'before'} the first kernel"
    key = _key(drawn)
    title = f"{duration(_length(drawn))}, from {where}" + "".join(
        f'<br><span style="font-size:12px">{line}</span>' for line in key
    )
    lanes = len(drawn.lanes)
    set_style(figure, title, height=42 + 18 * len(key) + 36 * lanes + 30)
    figure.update_layout(
        barmode="overlay",
        margin={"t": 42 + 18 * len(key), "b": 30},
        title={"yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 14, "l": 4}},
        uniformtext={"mode": "hide", "minsize": 9},
        selectdirection="h",
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(range=[0, length], ticksuffix=f" {unit}", nticks=9, tickangle=0)
    figure.update_yaxes(
        range=[lanes - 0.5, -0.5],
        tickvals=list(range(lanes)),
        ticktext=[_title(lane.kind, lane.title) for lane in drawn.lanes],
        showgrid=False,
    )
    # What no mark covers is idle: the lane's ground shows.
    for place, lane in enumerate(drawn.lanes):
        if lane.kind not in ("steps", "layers"):
            figure.add_shape(
                type="rect",
                xref="paper",
                x0=0,
                x1=1,
                y0=place - _LANE / 2,
                y1=place + _LANE / 2,
                fillcolor=_IDLE,
                line={"width": 0},
                layer="below",
            )


def _title(kind: str, title: str) -> str:
    return f"stream {label(title, 16)}" if kind == "stream" else label(title, 16)


def _key(drawn: Timeline) -> list[str]:
    """The components of the range with their shares of it, and what idles, in a few lines."""
    length = _length(drawn)
    parts = [
        f'<span style="color:{COLORS.get(COMPONENTS[place], NEUTRAL)}">&#9632;</span> '
        f"{label(COMPONENTS[place])} {share(ns / length)}"
        for ns, place in sorted(((ns, c) for c, ns in enumerate(drawn.components)), reverse=True)
        if ns
    ]
    parts.append(f"&#9633; nothing ran {share((length - drawn.busy_ns) / length)}")
    lines = range(0, len(parts), _KEYS_A_LINE)
    return ["  ".join(parts[begin : begin + _KEYS_A_LINE]) for begin in lines]


def _say_idle(figure: go.Figure, drawn: Timeline, ns: float) -> None:
    """Writes its length into each gap that is wide enough for it."""
    place = next(i for i, lane in enumerate(drawn.lanes) if lane.kind == "components")
    for gap in drawn.gaps:
        text = f"idle {duration(gap.length_ns)}"
        if gap.length_ns * PIXELS < 7 * (len(text) + 2) * _length(drawn):
            continue
        figure.add_annotation(
            x=(gap.begin_ns + gap.length_ns / 2 - drawn.from_ns) / ns,
            y=place,
            text=text,
            showarrow=False,
            font={"size": 11, "color": TEXT},
        )


def _point_out(
    figure: go.Figure,
    drawn: Timeline,
    columns: Mapping[int, KernelColumns],
    chosen: int,
    ns: float,
) -> None:
    own = columns[drawn.lanes[0].rank]
    begin, end = int(own.start_ns[chosen]), int(own.end_ns[chosen])
    if not (begin < drawn.to_ns and end >= drawn.from_ns):
        return
    for moment in {begin, end}:
        if drawn.from_ns <= moment < drawn.to_ns:
            figure.add_vline(
                x=(moment - drawn.from_ns) / ns, line={"color": TEXT, "width": 1, "dash": "dot"}
            )
    stream = own.streams[int(own.stream[chosen])]
    titles = [(lane.kind, lane.title) for lane in drawn.lanes]
    if ("stream", stream) not in titles:
        return
    lane = titles.index(("stream", stream))
    # Light within dark stands out from every colour, on every ground.
    for color, width in ((_LIGHT, 4), (_DARK, 1.5)):
        figure.add_shape(
            type="rect",
            x0=(max(begin, drawn.from_ns) - drawn.from_ns) / ns,
            x1=(min(end, drawn.to_ns) - drawn.from_ns) / ns,
            y0=lane - _LANE / 2,
            y1=lane + _LANE / 2,
            line={"color": color, "width": width},
        )
