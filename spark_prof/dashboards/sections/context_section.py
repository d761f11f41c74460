"""What context costs a decode step: the answer in a line, a table and a figure by kind of layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_prof.analyzers.context.context_costs import NARROWEST
from spark_prof.analyzers.context.context_rows import ContextCost, ContextSpeed, LayerKindCost
from spark_prof.analyzers.context.robust_line import FEWEST
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import COLORS, NEUTRAL, Plot, label, new_figure
from spark_prof.dashboards.section import Column, Section, listed, table
from spark_prof.dashboards.units import (
    MISSING,
    bandwidth,
    count,
    counted,
    figure,
    microseconds,
)

KINDS = {
    "full": "full attention",
    "window": "sliding window",
    "mla": "MLA",
    "sparse": "sparse attention",
    "gdn": "gated delta net (state)",
    "mamba": "Mamba (state)",
}
_RECORD = (
    "To know it, record decode steps at contexts that lie further apart: requests with prompts of "
    "1,024 and 32,768 tokens, say, one number of requests at a time."
)
_UNKNOWN = {
    "few": f"fewer than {FEWEST} decode steps of one batch size count. {_RECORD}",
    "narrow": f"the contexts lie within {NARROWEST} tokens. {_RECORD}",
    "layers": "nothing tells which layers ran the kernels of attention.",
    "model": "the model's configuration does not tell the kinds of its layers.",
    "times": "the kernels have no times.",
}
_NO_SLOPE = {
    "few": "too few steps",
    "narrow": "contexts too close together",
    "scatter": "the steps scatter more",
}
_LEAST_LOSS = 0.01  # of the tokens per second: less is no fall
_BENT = 0.1  # of a time: a line that is further off is told


def line(report: Report) -> str:
    """What a sequence loses from the shortest to the longest context, and to what; else empty."""
    cost = report.context
    if cost is None or cost.speed is None:
        return ""
    speed = cost.speed
    before, after = speed.shortest_tokens_per_s, speed.longest_tokens_per_s
    where = f"between {_tokens(cost.shortest)} and {_tokens(cost.longest)} tokens of context"
    batch = f" at batch {count(cost.batch)}"
    if before - after < _LEAST_LOSS * before:
        return f"tokens/s of a sequence stays at {_rate(before)} {where}{batch}."
    digits = 0 if before - after >= 10 else 1
    lost = round(before, digits) - round(after, digits)
    parts = _lost(speed, lost, digits)
    return (
        f"tokens/s of a sequence falls from {before:,.{digits}f} to {after:,.{digits}f} {where}"
        f"{batch}: {', '.join(parts)}."
    )


def _lost(speed: ContextSpeed, lost: float, digits: int) -> Iterator[str]:
    """How much of the loss each part is, so that the figures add up."""
    if speed.bytes_us is None or speed.kernel_us is None:
        parts = [(speed.attention_us, "attention's")]
    else:
        parts = [(speed.bytes_us, "bytes"), (speed.kernel_us, "the kernel")]
    parts.append((max(speed.other_us, 0.0), "outside of attention"))
    whole = sum(us for us, _ in parts)
    # Rounded up to each part, and the rest of it to the next.
    amounts, up_to, before = [], 0.0, 0.0
    for us, name in parts:
        up_to += us
        rounded = round(lost * up_to / whole, digits) if whole else 0.0
        amounts.append((rounded - before, name))
        before = rounded
    visible = [(amount, name) for amount, name in amounts if amount >= 0.5 * 10**-digits]
    for place, (amount, name) in enumerate(visible):
        of = f" of the {lost:,.{digits}f}" if not place else ""
        verb = " are" if not place else ""
        yield f"{amount:,.{digits}f}{of}{verb} {name}"


def sections(report: Report) -> tuple[Section, ...]:
    """All there is about context; `--section context` shows it."""
    cost = report.context
    if cost is None:
        return ()
    title = f"What context costs at batch {count(cost.batch)}"
    return (listed("context", title, _sentences(cost, report)), _kinds(cost), _marks(cost))


def _sentences(cost: ContextCost, report: Report) -> Iterator[str]:
    if answer := line(report):
        yield answer
    if cost.why_not:
        yield f"Not told: {_UNKNOWN.get(cost.why_not, cost.why_not)}"
        return
    yield (
        f"{counted(cost.steps, 'decode step')} with {_tokens(cost.shortest)} to "
        f"{_tokens(cost.longest)} tokens in the cache of a mean request."
    )
    if cost.bandwidth is None:
        yield (
            "How much of it are bytes is not known, as the memory's bandwidth is not: "
            "`spark-prof doctor --measure` on that machine measures it."
        )
    for kind in cost.kinds:
        yield from _about(kind)


def _about(kind: LayerKindCost) -> Iterator[str]:
    name = _name(kind)
    if kind.why_not == "scatter":
        yield f"{name}: what context adds is not told, as the steps scatter more than that."
    elif kind.slope_us is None or kind.slope_low_us is None or kind.slope_high_us is None:
        return
    elif not kind.grows and kind.slope_low_us <= 0 <= kind.slope_high_us:
        yield f"{name}: {microseconds(kind.us)} a step whatever the context is."
    elif not kind.grows:
        yield (
            f"{name}: its bytes do not grow with the context, its time does, by "
            f"{microseconds(kind.slope_us)} for 1,000 tokens."
        )
    if kind.off is not None and kind.off > _BENT:
        yield (
            f"{name}: no straight line, some contexts are up to {100 * kind.off:.0f} % off it; "
            "its figures say little between them."
        )


def _kinds(cost: ContextCost) -> Section:
    columns = (
        cells.Text("Layers", _name),
        cells.Count("Number", "layers", optional=True),
        cells.Formatted(
            "Context",
            lambda kind: f"{_tokens(kind.shortest)} to {_tokens(kind.longest)}",
            optional=True,
        ),
        cells.Time("A step", "us"),
        cells.Time("Fixed", "base_us"),
        cells.Time("1,000 more", "slope_us"),
        cells.Formatted("95 %", _interval),
        cells.Bytes("Bytes a token", lambda kind: kind.bytes_per_token or None, optional=True),
        cells.Time("Bound", lambda kind: kind.bound_us if kind.grows else None),
        cells.Share("Of the bound", "of_bound"),
        cells.Prose("", lambda kind: _NO_SLOPE.get(kind.why_not, kind.why_not)),
    )
    by = f"{bandwidth(cost.bandwidth)}" if cost.bandwidth else ""
    bound = f" The bound is what the bytes take at {by}." if by else ""
    intro = (
        "Attention with the KV cache's write, or the state, of all layers of a kind in a decode "
        f"step: a line through the steps. 1,000 tokens are those of each request.{bound}",
    )
    title = "Attention against context, by kind of layer"
    return table("context-kinds", title, cost.kinds, columns, intro)


def _marks(cost: ContextCost) -> Section:
    """What each kind takes at some contexts; those that were not recorded have the bound only."""
    rows = [kind for kind in cost.kinds if kind.marks]
    if not any(mark.us is not None for kind in rows for mark in kind.marks):
        rows = []
    places = range(len(rows[0].marks) if rows else 0)
    columns: Sequence[Column] = (
        cells.Text("Layers", _name),
        *(_at(rows[0].marks[place].context, place) for place in places),
        *(_bound_at(rows[0].marks[place].context, place) for place in places),
    )
    intro = ("In a step; a dash where no such context was recorded.",)
    return table("context-marks", "Attention at some contexts", rows, columns, intro)


def _at(context: int, place: int) -> Column:
    def us(kind: LayerKindCost) -> float | None:
        return kind.marks[place].us

    return cells.Time(f"At {_mark(context)}", us)


def _bound_at(context: int, place: int) -> Column:
    def us(kind: LayerKindCost) -> float | None:
        return kind.marks[place].bound_us

    return cells.Time(f"Bound at {_mark(context)}", us, optional=True)


def context_lines(report: Report) -> Plot:
    """Draws the line of each kind over its contexts, and the bound of its bytes."""
    chart = new_figure("Attention of a decode step against context", 340, legended=True)
    kinds = report.context.kinds if report.context else ()
    colors = (COLORS["attention"], COLORS["experts"], COLORS["qkv"], NEUTRAL)
    for place, kind in enumerate(kinds):
        if kind.slope_us is None or kind.base_us is None:
            continue
        color = colors[place % len(colors)]
        ends = [kind.shortest, kind.longest]
        layout = {"mode": "lines", "x": ends}
        chart.add_scatter(
            y=[kind.base_us + kind.slope_us * end / 1e3 for end in ends],
            name=label(_name(kind)), line={"color": color, "width": 3}, **layout,
        )  # fmt: skip
        if kind.bound_us and kind.grows:
            chart.add_scatter(
                y=[kind.bound_us * end / 1e3 for end in ends], name=label(f"{_name(kind)}, bytes"),
                line={"color": color, "width": 2, "dash": "dot"}, **layout,
            )  # fmt: skip
    chart.update_xaxes(title={"text": "tokens of context of a mean request"})
    chart.update_yaxes(title={"text": "us of a step"}, rangemode="tozero")
    return chart


def _name(kind: LayerKindCost) -> str:
    name = KINDS.get(kind.kind, kind.kind)
    return f"{name} of {count(kind.window)}" if kind.window and kind.kind == "window" else name


def _interval(kind: LayerKindCost) -> str:
    if kind.slope_us is None or kind.slope_high_us is None:
        return MISSING
    return f"± {microseconds(kind.slope_high_us - kind.slope_us)}"


def _tokens(context: float) -> str:
    return figure(context, ",.0f")


def _mark(context: int) -> str:
    return f"{context // 1024} k"


def _rate(tokens_per_s: float) -> str:
    return figure(tokens_per_s, ",.1f")
