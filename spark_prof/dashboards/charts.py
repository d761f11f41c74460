"""What all figures share: colours, labels, looks, bars and axes of time.

Backgrounds are transparent and text is mid-grey, so that a figure can stand on a light or a dark
page. Plotly reads some HTML in labels: every string from the report goes through `label`. Plotly
takes most of a second to import, and is imported when the first figure is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_prof.dashboards.units import microseconds, shorten

COLORS = {
    "embedding": "#CDD592",
    "norm": "#F0E442",
    "qkv": "#56B4E9",
    "rope": "#BADDF5",
    "kv_write": "#00F2C8",
    "attention": "#0072B2",
    "o_proj": "#90B2C9",
    "router": "#E69F00",
    "experts": "#D55E00",
    "shared_experts": "#AA6983",
    "mlp": "#009E73",
    "ssm": "#007B4B",
    "lm_head": "#882255",
    "sampler": "#CC79A7",
    "collective": "#B1B365",
    "memcpy": "#B92699",
    "other": "#999999",
}
"""The colour of each component."""

TEXT = "#7d838c"
SHADES = ("#6b5d50", "#a08f7e", "#cfc3b5")
"""Of what is no component: three browns, told apart by how dark they are, and by patterns."""

LINES = "rgba(128, 132, 140, 0.25)"
NEUTRAL = "#8a9099"

PHASE_COLORS = {"prefill": "#a67c1e", "decode": "#5f7486", "mixed": "#8468a8", "unknown": NEUTRAL}
"""The colour of what a step does, none of which is a component's."""


if TYPE_CHECKING:
    import plotly.graph_objects as go

    Plot: TypeAlias = go.Figure
else:
    Plot = object

_LEGENDED: Mapping[str, Any] = {
    "showlegend": True,
    "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
    "margin": {"t": 64},
    "title": {"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14, "l": 4}},
}
_FEWEST = 4
_FACTORS = ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))
_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))


def label(text: str, width: int = 40) -> str:
    """Makes a foreign string safe to show in a figure, where plotly would read tags and links."""
    return html.escape(shorten(text, width), quote=False)


def new_figure(title: str, height: int, *, legended: bool = False, **layout: Any) -> Plot:
    """A figure to draw in, with its title, height in pixels, and the look that all have.

    If it is `legended`, a legend stands below the title; `layout` is what else the layout has.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
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
    figure.update_layout(**(_LEGENDED if legended else {}))
    figure.update_layout(**layout)
    return figure


def add_bars(
    figure: Plot,
    names: Sequence[str],
    times: Sequence[float],
    color: object,
    *,
    hover: str = "%{y}: %{text}",
    pattern: str | None = None,
    with_times: bool = True,
    **options: Any,
) -> None:
    """Adds horizontal bars of times in us, named by safe labels; `options` are what go.Bar takes.

    The times stand behind the bars `with_times`, else only where one is pointed at.
    """
    marker = painted(color, pattern)
    looks: dict[str, Any] = {"textposition": "none"}
    if with_times:
        looks = {"textposition": "outside", "textfont": {"color": TEXT}, "cliponaxis": False}
    looks |= {
        "orientation": "h",
        "y": list(names),
        "x": list(times),
        "marker": marker,
        "text": [microseconds(us) for us in times],
        "hovertemplate": f"{hover}<extra></extra>",
    }
    figure.add_bar(**(looks | options))


def painted(color: object, pattern: str | None = None) -> dict[str, Any]:
    """The look of bars; greys are told apart by their pattern."""
    marker: dict[str, Any] = {"color": color, "line": {"width": 0}}
    if pattern is not None:
        marker["pattern"] = {"shape": pattern, "fillmode": "replace", "size": 6}
    return marker


def add_map(
    figure: Plot, names: Sequence[Any], rows: Sequence[str], us: object, **options: Any
) -> None:
    """Adds a map of times, a column a name; `options` are what else go.Heatmap takes."""
    looks: dict[str, Any] = {"colorscale": "Cividis", "zmin": 0, "xgap": 1, "ygap": 1}
    looks["colorbar"] = {"title": {"text": "us"}, "thickness": 12, "outlinewidth": 0}
    figure.add_heatmap(x=list(names), y=list(rows), z=us, **(looks | options))


def layer_map(
    title: str, names: Sequence[str], layers: Sequence[int], us: object, height: int, **options: Any
) -> Plot:
    """Draws layers against components, the first layer at the top; the cells show their text."""
    figure = new_figure(title, height)
    hover = "layer %{y}, %{x}: %{text}<extra></extra>"
    columns, rows = [label(name) for name in names], [str(layer) for layer in layers]
    add_map(figure, columns, rows, us, hovertemplate=hover, **options)
    figure.update_xaxes(side="bottom", tickangle=-35)
    figure.update_yaxes(autorange="reversed", type="category", title={"text": "layer"})
    return figure


def whiskers(
    values: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> dict[str, Any]:
    """Error bars from the low figures to the high ones."""
    above, below = (
        [abs(value - end) for value, end in zip(values, ends, strict=True)] for ends in (high, low)
    )
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


def bars(title: str, drawn: Sequence[tuple[str, float, str]], bases: Sequence[float]) -> Plot:
    """Draws bars from the bottom up: a safe label, us and a colour, each from its base on."""
    figure = new_figure(title, 90 + 26 * max(len(drawn), 2), margin={"r": 76})
    names, times = [name for name, _, _ in drawn], [us for _, us, _ in drawn]
    add_bars(figure, names, times, [color for _, _, color in drawn], base=list(bases))
    furthest = max((base + us for us, base in zip(times, bases, strict=True)), default=1.0)
    # On a phone there is no room for the unit behind every number.
    figure.update_xaxes(range=[0, furthest], ticksuffix=" us", showticksuffix="last", nticks=5)
    figure.update_xaxes(exponentformat="none", separatethousands=True, tickangle=0)
    # The figures beside the longest bars stand in the margin, which stays as wide on a phone.
    figure.update_yaxes(type="category", showgrid=False)
    return figure


def set_time_axes(figure: Plot, most_us: float, room: float = 1.002) -> None:
    """Gives horizontal bars an axis of time and names from the top down."""
    figure.update_xaxes(range=[0, room * most_us], **time_ticks(most_us))
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)


def set_layer_axes(figure: Plot, lowest: float, highest: float, unit: str) -> None:
    """Gives times by layer their axes, with some room above and below."""
    room = max(highest - lowest, 0.05 * highest) * 0.3
    figure.update_yaxes(range=[max(0.0, lowest - room), highest + room], title={"text": unit})
    figure.update_xaxes(title={"text": "layer"}, showgrid=False)


def time_ticks(most_us: float) -> dict[str, object]:
    """About 5 ticks of an axis of microseconds, in the unit in which they have few digits."""
    if not math.isfinite(most_us) or most_us <= 0:
        return {"tickvals": [0.0], "ticktext": ["0 us"], "tickangle": 0}
    rough = most_us / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * rough)
    unit, name = next((u, n) for u, n in _UNITS if most_us >= u or u == 1.0)
    values = [step * place for place in range(math.floor(most_us / step + 1e-9) + 1)]
    texts = [f"{float(f'{value / unit:.6g}'):,g}" for value in values]
    # On a phone there is no room for the unit behind every number.
    texts[-1] += f" {name}"
    return {"tickmode": "array", "tickvals": values, "ticktext": texts, "tickangle": 0}


def logarithmic_time_ticks(low: float, high: float) -> dict[str, object]:
    """Range and ticks of an axis of microseconds, from and to these decimal logarithms."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    for factors in _FACTORS:
        values = [factor * 10.0**power for power in powers for factor in factors]
        values = [value for value in values if low <= math.log10(value) <= high]
        if len(values) >= _FEWEST:
            break
    else:
        values = [float(f"{10 ** (low + (high - low) * n / 4):.4g}") for n in range(5)]
    return {
        "range": [low, high],
        "tickvals": [math.log10(value) for value in values],
        "ticktext": [_short(value) for value in values],
        "tickangle": 0,
    }


def _short(us: float) -> str:
    unit, name = next((u, n) for u, n in _UNITS if us >= u or u == 1.0)
    return f"{us / unit:g} {name}"
