"""The figure of a token's time, from the memory floor to what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import plotly.graph_objects as go

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import Part, Waterfall, waterfall_of
from spark_prof.dashboards.about_waterfall import name_of
from spark_prof.dashboards.chart_axes import time_ticks
from spark_prof.dashboards.charts import label, set_style
from spark_prof.dashboards.colors import COLORS, LINES, NEUTRAL, TEXT
from spark_prof.dashboards.formats import microseconds, share

_NO_TIME = 1e-4
"""Parts with less of the whole are not drawn."""

_PATTERNS: Mapping[str, str] = MappingProxyType(
    {"small": "/", "conversion": "x", "rest": "-", "launch_gaps": ".", "host": "\\"}
)
"""What has no component is grey: its pattern tells it apart, for colour-blind readers too."""

_FLOOR_COLOR = "#3d7a8c"


@dataclass(frozen=True)
class _Bar:
    """One bar; times in microseconds.

    Attributes:
        name: beside it; not escaped.
        kind: of its part, `measured` for the whole.
        component: of its part, empty where it has none.
        begin_us: where it begins.
        us: how far it reaches; below 0 to the left.
        text: at its end.
        color: that its part has everywhere.
        pattern: one of plotly's, empty for none.
    """

    name: str
    kind: str
    component: str
    begin_us: float
    us: float
    text: str
    color: str
    pattern: str = ""


def floor_waterfall(report: Report) -> go.Figure:
    """Draws the parts of `views.waterfall` from the top down, each where the one before ends.

    Every bar carries the part's kind and component as customdata.
    """
    found = waterfall_of(report)
    bars = _bars_of(found)
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
        figure.add_vline(x=found.floor_us, line={"color": _FLOOR_COLOR, "width": 1, "dash": "dot"})
    set_style(figure, _title_of(found), height=90 + 28 * max(len(bars), 2))
    figure.update_layout(margin={"r": 112})
    end = _furthest(bars)
    figure.update_xaxes(range=[0, 1.002 * end], **time_ticks(end))
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed", linecolor=LINES)
    return figure


def _bars_of(found: Waterfall) -> tuple[_Bar, ...]:
    """The parts from the top down, each where the one before ends, then all together."""
    bars, begin_us = [], 0.0
    for part in found.parts:
        if abs(part.us) <= _NO_TIME * found.us:
            continue
        text = f"{microseconds(part.us)}, {share(part.us / found.us)}"
        pattern = _PATTERNS.get(part.kind, "")
        name = name_of(part, found)
        bars.append(
            _Bar(name, part.kind, part.component, begin_us, part.us, text, _color(part), pattern)
        )
        begin_us += part.us
    whole = microseconds(found.us)
    return (*bars, _Bar("measured", "measured", "", 0.0, found.us, whole, NEUTRAL))


def _furthest(bars: tuple[_Bar, ...]) -> float:
    """Where the scale has to end.

    Where much runs at the same time, parts reach beyond the whole before the rest takes it back.
    """
    return max(1e-9, *(bar.begin_us + bar.us for bar in bars))


def _title_of(found: Waterfall) -> str:
    """What is drawn, in a line."""
    step = "a step" if found.phase == "unknown" else f"a {found.phase} step"
    whole = {"token": "an output token", "run": "the run"}.get(found.of, step)
    return f"What {whole} takes{', from its floor on' if found.floor_us else ''}"


def _color(part: Part) -> str:
    named = {"floor": _FLOOR_COLOR, "collective": COLORS["collective"], "copies": COLORS["memcpy"]}
    return named.get(part.kind) or COLORS.get(part.component, NEUTRAL)
