"""Format conversions: what they cost and for what, in which layers, and which cost no token."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.conversions.conversion_rows import (
    AttributedConversion,
    FusedConversion,
    LoadTimeConversion,
)
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import (
    COLORS,
    NEUTRAL,
    SHADES,
    Plot,
    add_bars,
    label,
    new_figure,
    painted,
    set_time_axes,
    time_ticks,
)
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.units import MISSING, counted, figure, microseconds, share
from spark_prof.vocabulary import CONVERSIONS

_MOST_ROWS = 15
_LOOKS = dict(zip(CONVERSIONS, product(SHADES, ("", "/", "x")), strict=False))
"""Colour and pattern of each kind; the hues are the components'."""


def attributed(report: Report) -> Section:
    """Lists conversions with the kernel that each works for, the most expensive first."""
    conversions = report.conversions
    rows = conversions.attributed[:_MOST_ROWS]
    called = cells.called(name for row in rows for name in (row.name, row.consumer) if name)
    columns = (
        cells.SomeTime("A token", "us_per_token"),
        cells.Formatted("A step", lambda row: figure(row.calls_per_step or None, ",.3g")),
        cells.SomeTime("A layer", _per_layer_us, optional=True),
        cells.Time("All steps", "us"),
        cells.SomeTime("Prefill", "prefill_us", optional=True),
        cells.Text("Conversion", "kind"),
        cells.Text("For", "component"),
        cells.Name("Read by", lambda row: called.get(row.consumer), missing=MISSING),
        cells.Name("Kernel", lambda row: called[row.name]),
    )
    sentence = f"{microseconds(conversions.us)}, {share(conversions.share)} of the time"
    if any(row.us_per_token is not None for row in rows):
        sentence = f"{microseconds(conversions.us_per_token)} of each token, {sentence} in all"
    intro = [
        f"{sentence}, go to work that only changes a format. It is attributed to the kernel that "
        "reads the result: the next one of its component on its stream."
    ]
    if rest := len(conversions.attributed) - len(rows):
        intro.append(f"{counted(rest, 'more row')} in JSON.")
    return table("conversions", "Format conversions", rows, columns, intro)


def _per_layer_us(row: AttributedConversion) -> float | None:
    return row.us_per_token / row.layers if row.layers and row.us_per_token is not None else None


def uncounted(report: Report) -> Section:
    """Lists conversions whose time is in no sum: PyTorch's pads, fused ones, those of load time."""
    conversions = report.conversions
    fused = sorted(conversions.fused, key=lambda row: -row.us)
    rows: list[tuple[str, AttributedConversion | FusedConversion | LoadTimeConversion]]
    rows = [("by order", row) for row in conversions.padding[:_MOST_ROWS]]
    rows += [("fused", row) for row in fused[:_MOST_ROWS]]
    rows += [
        ("outside the steps" if row.outside == row.calls else "load time", row)
        for row in conversions.load_time[:_MOST_ROWS]
    ]
    called = cells.called(row.name for _, row in rows)
    columns = (
        cells.Text("How", lambda pair: pair[0]),
        cells.Text("Conversion", lambda pair: pair[1].kind),
        cells.Text("In", lambda pair: getattr(pair[1], "component", "")),
        cells.Count("Calls", lambda pair: pair[1].calls),
        cells.Time("Time", lambda pair: pair[1].us),
        cells.Name("Kernel", lambda pair: called[pair[1].name]),
    )
    intro = (
        "Only the order of kernels tells what PyTorch's pad launches. Fused kernels convert beside "
        "their own work, and nothing tells how their time splits. No token waits for what runs at "
        "load time or outside the steps.",
    )
    return table("other_conversions", "Conversions that are not counted", rows, columns, intro)


def repeated(report: Report) -> Section:
    """Lists activations that are quantized once for each consumer instead of once."""
    columns = (
        cells.Time("In vain", "extra_us"),
        cells.Count("Calls in vain", "extra"),
        cells.Count("Calls", "calls"),
        cells.Text("Read by", lambda row: ", ".join(row.components)),
        cells.Count("Step", "step"),
        cells.Name("Kernel", "name"),
    )
    intro = ("In one decode step: what is quantized again that had been quantized already.",)
    title = "Quantized once for each consumer"
    return table("repeated", title, report.conversions.repeated, columns, intro)


def _decodes(report: Report) -> bool:
    return any(row.decode_us for row in report.conversions.attributed)


def cost_of(row: AttributedConversion, report: Report) -> float:
    """What a conversion takes of a token, else of a mean decode step, else of all steps, in us."""
    if row.us_per_token is not None:
        return row.us_per_token
    return row.decode_us / max(report.steps.decode, 1) if _decodes(report) else row.us


def ranked(report: Report) -> list[AttributedConversion]:
    """The conversions that take any time, the most expensive first."""
    rows = [row for row in report.conversions.attributed if cost_of(row, report) > 0]
    return sorted(rows, key=lambda row: -cost_of(row, report))


def most_expensive(report: Report) -> Plot:
    """Draws the conversions with what each takes, in the colour of the component that it is for.

    Each bar carries its place in `ranked` as customdata, the rest together -1.
    """
    rows = ranked(report)
    largest, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    names = [f"{number}. {_named(row)}" for number, row in enumerate(largest, 1)]
    times = [cost_of(row, report) for row in largest]
    colors = [COLORS.get(row.component, NEUTRAL) for row in largest]
    whose, places = [label(row.name, 100) for row in largest], list(range(len(largest)))
    if rest:
        names.append(f"{len(rest)} more")
        times.append(sum(cost_of(row, report) for row in rest))
        colors.append(NEUTRAL)
        whose.append("the rest")
        places.append(-1)
    whole = "a decode step" if _decodes(report) else "all steps"
    if report.conversions.us_per_token is not None:
        whole = "a token"
    title = f"What conversions take of {whole}"
    drawn = new_figure(title, 90 + 28 * len(names), margin={"r": 76})
    hover = "%{text}<br>%{hovertext}"
    add_bars(drawn, names, times, colors, hover=hover, hovertext=whose, customdata=places)
    set_time_axes(drawn, max(times, default=1.0))
    return drawn


def by_layer(report: Report) -> Plot:
    """Stacks each layer's conversions by kind: a mean decode step, or all steps without one."""
    rows = [row for row in report.conversions.layers if row.layer is not None]
    decodes = any(row.decode_us for row in rows)
    steps = max(report.steps.decode, 1) if decodes else 1
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    totals: dict[int, float] = defaultdict(float)
    for row in rows:
        us = (row.decode_us if decodes else row.us) / steps
        sums[row.kind][row.layer or 0] += us
        totals[row.layer or 0] += us
    title = f"Conversions by layer, {'a mean decode step' if decodes else 'all steps'}"
    drawn = new_figure(title, 300, legended=True, barmode="stack")
    for kind in sorted(sums, key=lambda kind: list(_LOOKS).index(kind) if kind in _LOOKS else -1):
        layers = sorted(sums[kind])
        times = [sums[kind][layer] for layer in layers]
        color, pattern = _LOOKS.get(kind, (NEUTRAL, ""))
        drawn.add_bar(
            x=layers,
            y=times,
            name=label(kind),
            customdata=layers,
            marker=painted(color, pattern),
            text=[microseconds(us) for us in times],
            textposition="none",
            hovertemplate=f"layer %{{x}}, {label(kind)}: %{{text}}<extra></extra>",
        )
    most = 1.05 * max(totals.values(), default=1.0)
    drawn.update_xaxes(title={"text": "layer"}, dtick=max(1, len(totals) // 16))
    drawn.update_yaxes(range=[0, most], **time_ticks(most))
    return drawn


def _named(row: AttributedConversion) -> str:
    """Its kind, for whom, and its kernel; a safe label."""
    return f"{label(row.kind)} for {label(row.component)}: {label(short_name(row.name), 34)}"
