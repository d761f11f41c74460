"""The bars of a token's time, from its floor to what was measured, for whoever draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from spark_prof.analyzers.views.waterfall import Part, Waterfall
from spark_prof.dashboards.about_waterfall import name_of
from spark_prof.dashboards.colors import COLORS, NEUTRAL
from spark_prof.dashboards.formats import microseconds, share

__all__ = ["FLOOR_COLOR", "Bar", "bars_of", "furthest", "title_of"]

_NO_TIME = 1e-4
"""Parts with less of the whole are not drawn."""

_PATTERNS: Mapping[str, str] = MappingProxyType(
    {"small": "/", "conversion": "x", "rest": "-", "launch_gaps": ".", "host": "\\"}
)
"""What has no component is grey: its pattern tells it apart, for colour-blind readers too."""

FLOOR_COLOR = "#3d7a8c"


@dataclass(frozen=True)
class Bar:
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


def bars_of(found: Waterfall) -> tuple[Bar, ...]:
    """The parts from the top down, each where the one before ends, then all together."""
    bars, begin_us = [], 0.0
    for part in found.parts:
        if abs(part.us) <= _NO_TIME * found.us:
            continue
        text = f"{microseconds(part.us)}, {share(part.us / found.us)}"
        pattern = _PATTERNS.get(part.kind, "")
        name = name_of(part, found)
        bars.append(
            Bar(name, part.kind, part.component, begin_us, part.us, text, _color(part), pattern)
        )
        begin_us += part.us
    whole = microseconds(found.us)
    return (*bars, Bar("measured", "measured", "", 0.0, found.us, whole, NEUTRAL))


def furthest(bars: tuple[Bar, ...]) -> float:
    """Where the scale has to end.

    Where much runs at the same time, parts reach beyond the whole before the rest takes it back.
    """
    return max(1e-9, *(bar.begin_us + bar.us for bar in bars))


def title_of(found: Waterfall) -> str:
    """What is drawn, in a line."""
    step = "a step" if found.phase == "unknown" else f"a {found.phase} step"
    whole = {"token": "an output token", "run": "the run"}.get(found.of, step)
    return f"What {whole} takes{', from its floor on' if found.floor_us else ''}"


def _color(part: Part) -> str:
    named = {"floor": FLOOR_COLOR, "collective": COLORS["collective"], "copies": COLORS["memcpy"]}
    return named.get(part.kind) or COLORS.get(part.component, NEUTRAL)
