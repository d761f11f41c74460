"""Sections about where the difference of a step comes from: components, layers, kernels."""

from __future__ import annotations

from spark_prof.analyzers.comparing.model import KernelPart, Part, PhaseComparison
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.dashboards.compare_words import by_share, by_us, span, verdict
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    figure,
    nothing_as_missing,
    share,
    spans,
)
from spark_prof.dashboards.section import Column, Section

_NAMES = {"launch_gaps": "launch gaps"}
_SMALL = 0.001
"""Changes of a smaller share of the step are left out of the tables of layers and kernels."""


def steps(phase: PhaseComparison, b: str = "b") -> Section:
    """The step itself: as each side ran it, by size, and what of it is the mix of sizes."""
    size = "Batch" if phase.phase == "decode" else "Prompt tokens"
    columns = (
        Column("Steps"),
        Column("a", "number"),
        Column(b, "number"),
        *_change(b),
        Column("Steps a", "number", optional=True),
        Column(f"Steps {b}", "number", optional=True),
    )
    numbers = [sum(getattr(row, side) for row in phase.sizes) for side in ("steps_a", "steps_b")]
    rows = []
    if len(phase.sizes) > 1 or not phase.alike:
        rows.append(("all, as they ran", *_row(phase.whole), *map(count, numbers)))
    rows += [
        (
            f"{size.lower()} {count(row.size)}" if row.size else "all",
            *(
                _row(row.median)
                if row.median
                else (MISSING, MISSING, MISSING, MISSING, MISSING, "not compared")
            ),
            count(row.steps_a),
            count(row.steps_b),
        )
        for row in phase.sizes
    ]
    if len([row for row in phase.sizes if row.weight]) > 1:
        rows.append(("same sizes, as often as in a", *_row(phase.like), "", ""))
    intro = [
        f"Median time of a {phase.unit}."
        if phase.unit == "step"
        else "Median time of a prompt's token; no two steps had the same number of them.",
    ]
    if abs(phase.mix_us) > _SMALL * phase.whole.a:
        intro.append(f"That the sides ran steps of other sizes explains {by_us(phase.mix_us)}.")
    context = phase.context
    if context:
        intro.append(
            f"Contexts differ ({context.tokens_a:,.0f} against {context.tokens_b:,.0f} tokens): "
            f"a step grows by {1000 * context.us_per_token:.1f} ns a token, which explains "
            f"{by_us(context.us)} ({by_us(context.low)} to {by_us(context.high)}) of it."
        )
    title = f"{_title(phase)} steps"
    return Section(_id("steps", phase, b), title, columns, tuple(rows), tuple(intro))


def components(phase: PhaseComparison, b: str = "b") -> Section:
    """Which components and gaps the difference consists of."""
    columns = (
        Column("Part"),
        Column("a", "number"),
        Column(b, "number"),
        *_change(b),
        Column("Kernels a", "number", optional=True),
        Column(f"Kernels {b}", "number", optional=True),
    )
    rows = [
        (
            _NAMES.get(part.name, clean(part.name)),
            *_row(part.change),
            _calls(part.calls_a),
            _calls(part.calls_b),
        )
        for part in phase.parts
    ]
    rows.append(("typical step", *_row(phase.typical), "", ""))
    if phase.residual_us:
        rows.append(("residual", "", "", by_us(phase.residual_us), "", "", "", "", ""))
        rows.append(("median step", *_row(phase.like), "", ""))
    intro = (
        f"A typical {phase.unit}: the mean over the middle half of the steps by length, so that "
        "the parts add up to it. Each instant counts to one part. The residual is what the median "
        "differs by beyond that.",
        "95 %: from how the steps vary, stretch by stretch, and by how much engine starts of the "
        "same thing differ. Noise: 0 lies within.",
    )
    return Section(
        _id("components", phase, b),
        f"Where the difference of a {phase.phase} {phase.unit} comes from",
        columns,
        tuple(rows),
        intro,
    )


def layers(phase: PhaseComparison, b: str = "b") -> Section:
    """The layers that differ beyond noise."""
    differ = [row for row in phase.layers if _counts(phase, row.change)]
    columns = (
        Column("Layer"),
        Column("a", "number"),
        Column(b, "number"),
        *_change(b),
        Column("Most of it", "prose", optional=True),
    )
    rows = tuple(
        (str(row.layer), *_row(row.change), _most(phase, row.layer, row.change)) for row in differ
    )
    alike = [row.layer for row in phase.layers if row not in differ and row.layer is not None]
    intro = [f"Time of one layer in a typical {phase.unit}; layers that do not differ are left out"]
    intro[0] += f": {spans(alike)}." if alike else "."
    return Section(
        _id("layers", phase, b),
        f"Layers that differ in a {phase.phase} {phase.unit}",
        columns,
        rows,
        tuple(intro),
    )


def kernels(phase: PhaseComparison, b: str = "b") -> Section:
    """The kernels that differ beyond noise, and those of one side only."""
    differ = [row for row in phase.kernels if _counts(phase, row.change)]
    columns = (
        Column("Kernel", "name"),
        Column("Component"),
        Column("a", "number"),
        Column(b, "number"),
        Column("Change", "number"),
        Column("95 %", optional=True),
        Column("In"),
        Column("Calls", "number", optional=True),
        Column("Layers", optional=True),
        Column("Ran on", optional=True),
    )
    rows = tuple(
        (
            clean(row.name),
            clean(row.component),
            nothing_as_missing(row.change.a),
            nothing_as_missing(row.change.b),
            by_us(row.change.us),
            span(row.change),
            row.where.replace("b", b) if row.where == "only b" else row.where,
            _both(_calls(row.calls_a), _calls(row.calls_b)),
            _layers_of(row),
            _both(row.engine_a, row.engine_b),
        )
        for row in differ
    )
    intro = (
        f"Time in a typical {phase.unit}. Kernels are matched by their names within a component, "
        "without what changes from compilation to compilation; one that was replaced stands here "
        "twice, as gone from a and new on the other side.",
    )
    return Section(
        _id("kernels", phase, b),
        f"Kernels that differ in a {phase.phase} {phase.unit}",
        columns,
        rows,
        intro,
    )


def engines(phase: PhaseComparison, b: str = "b") -> Section:
    """The components that compute on another engine, in another precision or from other weights."""
    rows = tuple(
        (clean(part.name), _mix(part.engines_a), _mix(part.engines_b), by_us(part.change.us))
        for part in phase.parts
        if _computes_otherwise(part)
    )
    columns = (
        Column("Component"),
        Column("a", "prose"),
        Column(b, "prose"),
        Column("Change", "number"),
    )
    return Section(
        _id("engines", phase, b),
        "What computes otherwise",
        columns,
        rows,
        ("Share of the component's kernel time in decode steps, by engine and precision.",),
    )


def _id(what: str, phase: PhaseComparison, b: str) -> str:
    """The id of a section; only what is compared third and later bears its letter."""
    return f"compare_{what}_{phase.phase}" + (f"_{b}" if b != "b" else "")


def _change(b: str) -> tuple[Column, ...]:
    return (
        Column("Change", "number"),
        Column("", "number"),
        Column("95 %"),
        Column(f"{b} is"),
    )


def _row(change: Change) -> tuple[str, ...]:
    return (
        nothing_as_missing(change.a),
        nothing_as_missing(change.b),
        by_us(change.us),
        by_share(change),
        span(change),
        verdict(change),
    )


def _counts(phase: PhaseComparison, change: Change) -> bool:
    return change.sure and abs(change.us) >= _SMALL * max(phase.typical.a, phase.typical.b)


def _most(phase: PhaseComparison, layer: int | None, whole: Change) -> str:
    """The components that most of a layer's change is in."""
    rows = [
        row
        for row in phase.layer_parts
        if row.layer == layer and abs(row.change.us) >= abs(whole.us) / 4 and row.change.sure
    ]
    ranked = sorted(rows, key=lambda row: -abs(row.change.us))[:3]
    return ", ".join(f"{row.component} {by_us(row.change.us)}" for row in ranked)


def _layers_of(row: KernelPart) -> str:
    if row.where == "both" and row.layers_a == row.layers_b:
        return spans(row.layers_a) or MISSING
    return _both(spans(row.layers_a), spans(row.layers_b))


def _both(a: str, b: str) -> str:
    a, b = clean(a), clean(b)
    return a or MISSING if a == b else f"{a or MISSING} > {b or MISSING}"


def _calls(number: float) -> str:
    if not number:
        return MISSING
    return figure(number, ",.0f" if abs(number - round(number)) < 0.05 else ",.1f")


def _mix(engines: tuple[tuple[str, float], ...]) -> str:
    found = ", ".join(f"{share(part)} {clean(label)}" for label, part in engines if part >= 0.005)
    return found or MISSING


def _computes_otherwise(part: Part) -> bool:
    a, b = dict(part.engines_a), dict(part.engines_b)
    return any(abs(a.get(label, 0.0) - b.get(label, 0.0)) >= 0.05 for label in {*a, *b})


def _title(phase: PhaseComparison) -> str:
    return "Recorded" if phase.phase == "unknown" else phase.phase.capitalize()
