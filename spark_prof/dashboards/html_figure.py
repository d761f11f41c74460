"""Draws the figures of the HTML report: their places, and the script at the end that fills them.

plotly.js is megabytes. At the end of the page it keeps nobody from reading the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape, unescape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from spark_prof.dashboards.formats import clean

_TITLE, _NO_TITLE = 40, 8
"""Pixels above a figure with its title, as `charts.set_style` sets them, and without."""
_CONFIG = json.dumps({"displayModeBar": False, "responsive": True})
# In a script a name could end it.
_ESCAPES = {character: f"\\u{ord(character):04x}" for character in "<>&"}


def place(name: str, figure: go.Figure) -> str:
    """Where a figure will stand, with its title.

    Plotly does not break a title's line, and on a phone it would leave the page.
    """
    title = clean(unescape(figure.layout.title.text or ""))
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<div id="chart-{escape(name)}" style="height:{_height(figure)}px"></div></figure>\n'
    )


def script(figures: Mapping[str, go.Figure]) -> str:
    """What draws figures at their places; empty without any."""
    if not figures:
        return ""
    calls = "\n".join(_call(name, figure) for name, figure in figures.items())
    return f"<script>{get_plotlyjs()}</script>\n<script>\n{calls}\n</script>\n"


def _call(name: str, figure: go.Figure) -> str:
    untitled = go.Figure(figure)
    untitled.update_layout(title=None, margin={"t": _NO_TITLE}, height=_height(figure))
    # ASCII alone: half a character of a foreign name is no fault, and none ends a line.
    drawn = untitled.to_json(engine="json")
    for character, escaped in _ESCAPES.items():
        drawn = drawn.replace(character, escaped)
    return (
        f"((figure) => Plotly.newPlot({json.dumps(f'chart-{name}')}, figure.data, figure.layout, "
        f"{_CONFIG}))({drawn});"
    )


def _height(figure: go.Figure) -> int:
    return int(figure.layout.height) - _TITLE + _NO_TITLE
