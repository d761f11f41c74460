"""The figure of a token's time, from the memory floor to what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import plotly.graph_objects as go

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import Part, waterfall_of
from spark_prof.dashboards.about_waterfall import name_of
from spark_prof.dashboards.chart_axes import time_ticks
from spark_prof.dashboards.charts import COLORS, LINES, NEUTRAL, TEXT, label, set_style
from spark_prof.dashboards.formats import microseconds, share

__all__ = ["floor_waterfall"]

_NO_TIME = 1e-4
"""Parts with less of the whole are not drawn."""

_PATTERNS: Mapping[str, str] = MappingProxyType(
    {"small": "/", "conversion": "x", "rest": "-", "launch_gaps": ".", "host": "\\"}
)
"""What has no component is grey: its pattern tells it apart, for colour-blind readers too."""
_FLOOR = "#3d7a8c"


def floor_waterfall(report: Report) -> go.Figure:
    """Draws the parts of `views.waterfall` from the top down, each where the one before ends.

    Every bar carries the part's kind and component as customdata.
    """
    found = waterfall_of(report)
    parts = [part for part in found.parts if abs(part.us) > _NO_TIME * found.us]
    bases, running = [], 0.0
    for part in parts:
        bases.append(running)
        running += part.us
    names = [label(name_of(part, found)) for part in parts]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[*names, "measured"],
            x=[*(part.us for part in parts), found.us],
            base=[*bases, 0.0],
            customdata=[*((part.kind, part.component) for part in parts), ("measured", "")],
            marker={
                "color": [*(_color(part) for part in parts), NEUTRAL],
                "line": {"width": 0},
                "pattern": {
                    "shape": [*(_PATTERNS.get(part.kind, "") for part in parts), ""],
                    "fgcolor": TEXT,
                    "fillmode": "replace",
                    "size": 6,
                },
            },
            text=[*(_text(part.us, found.us) for part in parts), microseconds(found.us)],
            textposition="outside",
            textfont={"color": TEXT},
            cliponaxis=False,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    )
    if found.floor_us is not None:
        figure.add_vline(x=found.floor_us, line={"color": _FLOOR, "width": 1, "dash": "dot"})
    floor = ", from its floor on" if found.floor_us else ""
    title = f"What {_whole(found.of, found.phase)} takes{floor}"
    set_style(figure, title, height=90 + 28 * max(len(parts) + 1, 2))
    figure.update_layout(margin={"r": 112})
    # Where much runs at the same time, parts reach beyond the whole before the rest takes it back.
    furthest = max(
        found.us, *(base + part.us for base, part in zip(bases, parts, strict=True)), 1e-9
    )
    figure.update_xaxes(range=[0, 1.002 * furthest], **time_ticks(furthest))
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed", linecolor=LINES)
    return figure


def _whole(of: str, phase: str) -> str:
    if of == "token":
        return "an output token"
    if of == "run":
        return "the run"
    return "a step" if phase == "unknown" else f"a {phase} step"


def _text(us: float, whole: float) -> str:
    return f"{microseconds(us)}, {share(us / whole)}"


def _color(part: Part) -> str:
    named = {"floor": _FLOOR, "collective": COLORS["collective"], "copies": COLORS["memcpy"]}
    return named.get(part.kind) or COLORS.get(part.component, NEUTRAL)
