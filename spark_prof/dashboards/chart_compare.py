"""The figures of a comparison and of a result of `spark-prof ab`.

What got slower is orange, what got faster blue. Every string from a recording goes through
`charts.label`, as plotly reads some HTML.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from spark_prof.ab.result import AbOutcome, floor_of
from spark_prof.analyzers.comparing.comparison import Comparison, PhaseComparison
from spark_prof.analyzers.comparing.swap_attribution import Attribution
from spark_prof.dashboards.ab_answer import what_ran
from spark_prof.dashboards.charts import (
    COLORS,
    LINES,
    NEUTRAL,
    TEXT,
    Plot,
    add_bars,
    bars,
    label,
    layer_map,
    new_figure,
    whiskers,
)
from spark_prof.dashboards.compare_gate import LETTERS, SideNames, by_us, shown_part
from spark_prof.dashboards.sections.layer_section import in_decoder_order
from spark_prof.dashboards.units import microseconds

_GAIN = "#0072B2"
_DIVERGING = (
    (0.0, "#0072B2"),
    (0.25, "#56B4E9"),
    (0.5, "rgba(128, 132, 140, 0.12)"),
    (0.75, "#E69F00"),
    (1.0, "#D55E00"),
)
"""From faster to slower, in Okabe and Ito's colours."""

_SMALL = 0.002  # parts that change by a smaller share of the step are drawn together
_MOST_LAYERS = 200
_ROOM = 0.15  # share of the axis that a label takes

_Part = tuple[str, float, str]
"""A safe label, by how many us it makes the step longer, and a colour."""


def ab_figures(result: AbOutcome) -> Mapping[str, Plot]:
    """The figures by the id of the section in which they stand."""
    drawn = {}
    if any(run.estimate.gain for run in result.runs):
        drawn["ab_gains"] = gain_points(result)
    for attribution in result.attributions:
        drawn[f"ab_components_{attribution.batch_size}"] = waterfall(attribution)
        if any(row.layer is not None for row in attribution.layers):
            drawn[f"ab_layers_{attribution.batch_size}"] = layer_bars(attribution)
    return drawn


def gain_points(result: AbOutcome) -> Plot:
    """Draws the gain of each run with its interval, and how far side a was from itself."""
    runs = [(run, gain) for run in result.runs if (gain := run.estimate.gain)]
    figure = new_figure("Gain with its 95 % interval; grey: a against itself", 320)
    for index, (run, _) in enumerate(runs):
        floor = floor_of(run, result.aa)
        if floor:
            figure.add_shape(
                type="rect", x0=index - 0.5, x1=index + 0.5, y0=1 / (1 + floor), y1=1 + floor,
                fillcolor=LINES, line={"width": 0}, layer="below",
            )  # fmt: skip
    figure.add_hline(y=1, line={"color": NEUTRAL, "width": 1, "dash": "dot"})
    gains = [gain.value for _, gain in runs]
    interval = whiskers(gains, [gain.low for _, gain in runs], [gain.high for _, gain in runs])
    figure.add_scatter(
        mode="markers+text",
        x=list(range(len(runs))),
        y=gains,
        error_y=interval | {"color": _GAIN, "width": 8},
        marker={"color": _GAIN, "size": 9},
        text=[f"  {gain:.3f} x" for gain in gains],
        textposition="middle right",
        textfont={"color": TEXT},
        cliponaxis=False,
        hovertemplate="%{text}<extra></extra>",
    )
    figure.update_xaxes(
        tickvals=list(range(len(runs))),
        ticktext=[label(what_ran(run)) for run, _ in runs],
        range=[-0.5, len(runs) - 0.5],
        showgrid=False,
    )
    figure.update_yaxes(ticksuffix=" x", nticks=6)
    return figure


def waterfall(attribution: Attribution) -> Plot:
    """Leads from a's time of a step to b's, by component."""
    a, b, residual = attribution.a.corrected_us, attribution.b.corrected_us, 0.0
    if attribution.a.untraced_us is not None and attribution.b.untraced_us is not None:
        a, b = attribution.a.untraced_us, attribution.b.untraced_us
        residual = attribution.residual_us or 0.0
    rows = sorted(attribution.components, key=lambda row: -row.saved_us)
    parts = _parts(((row.component, -row.saved_us) for row in rows), a, "smaller components")
    if residual:
        parts.append(("residual", -residual, NEUTRAL))
    return _waterfall("From a's step to b's", ("a", a), parts, ("b", b))[0]


def _parts(changes: Iterable[tuple[str, float]], whole_us: float, small: str) -> list[_Part]:
    """The parts of a waterfall; those that are small beside the whole are together its last one."""
    parts, rest = [], 0.0
    for name, us in changes:
        if abs(us) >= _SMALL * whole_us:
            parts.append((label(shown_part(name)), us, COLORS.get(name, NEUTRAL)))
        else:
            rest += us
    return [*parts, (small, rest, NEUTRAL)]


def _waterfall(
    title: str, first: tuple[str, float], parts: Sequence[_Part], last: tuple[str, float]
) -> tuple[Plot, list[float]]:
    """Leads from one time to the other, and says where each part begins."""
    begins = [first[1]]
    for _, us, _ in parts:
        begins.append(begins[-1] + us)
    drawn = [(*first, NEUTRAL), *parts, (*last, NEUTRAL)]
    # Plotly draws the first bar at the bottom; this is read from the top down.
    return bars(title, drawn[::-1], [0.0, *begins[:-1], 0.0][::-1]), begins[:-1]


def layer_bars(attribution: Attribution) -> Plot:
    """Draws what each layer saves, component by component."""
    table: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in attribution.layers:
        if row.layer is not None:
            name = row.component if row.touched else "without a swap"
            table[name][row.layer] += row.saved_us
    figure = new_figure("Saved in each layer", 320, legended=True, barmode="relative")
    for name in in_decoder_order(table):
        figure.add_bar(
            name=label(name),
            x=list(table[name]),
            y=list(table[name].values()),
            marker={"color": COLORS.get(name, NEUTRAL), "line": {"width": 0}},
            hovertemplate=f"layer %{{x}}, {label(name)}: %{{y:.2f}} us<extra></extra>",
        )
    figure.update_xaxes(title={"text": "layer"}, showgrid=False)
    figure.update_yaxes(ticksuffix=" us", zeroline=True, zerolinecolor=LINES)
    return figure


def compare_figures(comparisons: Sequence[Comparison]) -> dict[str, Plot]:
    """The figures by the id of the section in which they stand."""
    drawn: dict[str, Plot] = {}
    for letter, comparison in zip(LETTERS[1:], comparisons, strict=False):
        ending = f"_{letter}" if letter != "b" else ""
        for phase in comparison.phases:
            if phase.obstacle:
                continue
            name = f"{phase.phase}{ending}"
            names = SideNames(*comparison.names, letter)
            drawn[f"compare_components_{name}"] = difference_waterfall(phase, names)
            if any(row.change.sure for row in phase.layers):
                drawn[f"compare_layers_{name}"] = layer_differences(phase)
    return drawn


def difference_waterfall(phase: PhaseComparison, names: SideNames) -> Plot:
    """Leads from a's median step to the other's, part by part, the slower one first."""
    longer = max(phase.like.a, phase.like.b)
    parts = _parts(((p.name, p.change.us) for p in phase.parts), longer, "smaller parts")
    # The bars begin and end at medians, the parts are of typical steps.
    parts.append(("residual", phase.residual_us, NEUTRAL))
    parts = [part for part in parts if abs(part[1]) >= _SMALL * longer / 100]
    a, b = label(names.a), label(names.b)
    title = f"{phase.phase.capitalize()} {phase.unit}: from {a} to {b}"
    figure, begins = _waterfall(title, (a, phase.like.a), parts, (b, phase.like.b))
    texts = [microseconds(phase.like.a), *(by_us(us) for _, us, _ in parts)]
    texts.append(microseconds(phase.like.b))
    figure.update_traces(text=texts[::-1])
    edges = [phase.like.a, phase.like.b, *begins]
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


def component_pairs(phase: PhaseComparison, names: SideNames) -> Plot:
    """Draws each part of a typical step on both sides, beside each other."""
    by_name = {part.name: part.change for part in phase.parts}
    parts = in_decoder_order(by_name)[::-1]
    title = f"Parts of a typical {phase.unit}: {label(names.a)} hatched"
    figure = new_figure(title, 90 + 34 * len(parts), barmode="group")
    for side, pattern in (("a", "/"), ("b", "")):
        called = label(getattr(names, side))
        add_bars(
            figure,
            [label(shown_part(name)) for name in parts],
            [getattr(by_name[name], side) for name in parts],
            [COLORS.get(name, NEUTRAL) for name in parts],
            hover=f"{called}, %{{y}}: %{{text}}",
            pattern=pattern,
            with_times=False,
            name=called,
            customdata=[[name] for name in parts],
        )
    figure.update_xaxes(ticksuffix=" us", nticks=5, exponentformat="none")
    figure.update_yaxes(type="category", showgrid=False)
    return figure


def layer_differences(phase: PhaseComparison) -> Plot:
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
    return layer_map(
        f"By layer and component, in a {phase.phase} {phase.unit}: slower orange, faster blue",
        names,
        layers,
        times,
        height=150 + min(max(18 * len(layers), 80), 900),
        text=[["" if us is None else by_us(us) for us in row] for row in times],
        colorscale=list(_DIVERGING),
        zmin=-widest,
        zmax=widest,
    )
