"""The figures of a comparison of recordings. What got slower is orange, what got faster blue."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from spark_prof.analyzers.comparing.model import Comparison, PhaseComparison
from spark_prof.dashboards.charts import bars, label, set_style
from spark_prof.dashboards.colors import COLORS, LINES, NEUTRAL
from spark_prof.dashboards.compare_words import LETTERS, by_us
from spark_prof.dashboards.formats import microseconds
from spark_prof.dashboards.sections.layer_section import in_decoder_order

DIVERGING = (
    (0.0, "#0072B2"),
    (0.25, "#56B4E9"),
    (0.5, "rgba(128, 132, 140, 0.12)"),
    (0.75, "#E69F00"),
    (1.0, "#D55E00"),
)
"""From faster to slower, in Okabe and Ito's colours."""

_SMALL = 0.002
"""Parts that change by a smaller share of the step are drawn together."""
_NAMES = {"launch_gaps": "launch gaps"}
_MOST_LAYERS = 200
_ROOM = 0.15
"""Share of the axis that a label takes."""


def figures(found: Sequence[Comparison]) -> dict[str, go.Figure]:
    """The figures by the id of the section in which they stand."""
    drawn: dict[str, go.Figure] = {}
    for letter, comparison in zip(LETTERS[1:], found, strict=False):
        ending = f"_{letter}" if letter != "b" else ""
        for phase in comparison.phases:
            name = f"{phase.phase}{ending}"
            drawn[f"compare_components_{name}"] = difference_waterfall(phase, letter)
            if any(row.change.sure for row in phase.layers):
                drawn[f"compare_layers_{name}"] = layer_differences(phase)
    return drawn


def difference_waterfall(phase: PhaseComparison, b: str = "b") -> go.Figure:
    """Leads from a's median step to the other's, part by part, the slower one first."""
    visible = _SMALL * max(phase.like.a, phase.like.b)
    shown = [part for part in phase.parts if abs(part.change.us) >= visible]
    parts = [
        (
            label(_NAMES.get(part.name, part.name)),
            part.change.us,
            COLORS.get(part.name, NEUTRAL),
        )
        for part in shown
    ]
    small = sum(part.change.us for part in phase.parts if part not in shown)
    parts.append(("smaller parts", small, NEUTRAL))
    # The bars begin and end at medians, the parts are of typical steps.
    parts.append(("residual", phase.residual_us, NEUTRAL))
    parts = [part for part in parts if abs(part[1]) >= visible / 100]
    bases, running = [0.0], phase.like.a
    for _, us, _ in parts:
        bases.append(running)
        running += us
    drawn = [("a", phase.like.a, NEUTRAL), *parts, (b, phase.like.b, NEUTRAL)]
    # Plotly draws the first bar at the bottom; this is read from the top down.
    figure = bars(f"From a's {phase.phase} {phase.unit} to {b}'s", drawn[::-1], [*bases, 0.0][::-1])
    texts = [microseconds(phase.like.a), *(by_us(us) for _, us, _ in parts)]
    texts.append(microseconds(phase.like.b))
    figure.update_traces(text=texts[::-1])
    edges = [phase.like.a, phase.like.b, *bases[1:]]
    lowest, highest = min(edges), max(edges)
    if lowest > 2 * (highest - lowest):
        # Small changes of long steps are the rule; from 0 on nothing of them would be seen.
        margin = max(0.2 * (highest - lowest), 0.005 * highest)
        figure.update_xaxes(range=[lowest - 2 * margin, highest + margin])
        figure.update_layout(title={"text": f"{figure.layout.title.text}; the axis is cut"})
    elif lowest < _ROOM * highest:
        # The label of a bar that ends near 0 stands left of it.
        figure.update_xaxes(range=[-_ROOM * highest, (1 + _ROOM / 3) * highest])
    return figure


def component_pairs(phase: PhaseComparison, b: str = "b") -> go.Figure:
    """Draws each part of a typical step on both sides, beside each other."""
    names = in_decoder_order(part.name for part in phase.parts)
    by_name = {part.name: part for part in phase.parts}
    figure = go.Figure()
    for side, pattern in (("a", "/"), (b, "")):
        values = [
            by_name[name].change.a if side == "a" else by_name[name].change.b
            for name in reversed(names)
        ]
        figure.add_trace(
            go.Bar(
                name=side,
                orientation="h",
                y=[label(_NAMES.get(name, name)) for name in reversed(names)],
                x=values,
                customdata=[[name] for name in reversed(names)],
                marker={
                    "color": [COLORS.get(name, NEUTRAL) for name in reversed(names)],
                    "pattern": {"shape": pattern, "fillmode": "replace"},
                    "line": {"width": 0},
                },
                text=[microseconds(value) for value in values],
                hovertemplate=f"{label(side)}, %{{y}}: %{{text}}<extra></extra>",
            )
        )
    set_style(figure, f"Parts of a typical {phase.unit}: a hatched", height=90 + 34 * len(names))
    figure.update_layout(barmode="group", showlegend=False)
    figure.update_traces(textposition="none")
    figure.update_xaxes(ticksuffix=" us", nticks=5, exponentformat="none")
    figure.update_yaxes(type="category", showgrid=False)
    return figure


def layer_differences(phase: PhaseComparison) -> go.Figure:
    """Draws by how much each component of each layer differs; what noise explains is left out."""
    rows = [row for row in phase.layer_parts if row.layer is not None]
    layers = sorted({row.layer for row in rows if row.layer is not None})[:_MOST_LAYERS]
    names = in_decoder_order(row.component for row in rows)
    changes = {(row.layer, row.component): row.change for row in rows}
    times = [
        [
            change.us if (change := changes.get((layer, name))) and change.sure else None
            for name in names
        ]
        for layer in layers
    ]
    widest = max((abs(us) for row in times for us in row if us is not None), default=1.0)
    figure = go.Figure(
        go.Heatmap(
            x=[label(name) for name in names],
            y=[str(layer) for layer in layers],
            z=times,
            text=[["" if us is None else by_us(us) for us in row] for row in times],
            hovertemplate="layer %{y}, %{x}: %{text}<extra></extra>",
            colorscale=list(DIVERGING),
            zmin=-widest,
            zmax=widest,
            colorbar={"title": {"text": "us"}, "thickness": 12, "outlinewidth": 0},
            xgap=1,
            ygap=1,
        )
    )
    set_style(
        figure,
        f"By layer and component, in a {phase.phase} {phase.unit}: slower orange, faster blue",
        height=150 + min(max(18 * len(layers), 80), 900),
    )
    figure.update_xaxes(side="bottom", tickangle=-35, gridcolor=LINES)
    figure.update_yaxes(autorange="reversed", type="category", title={"text": "layer"})
    return figure
