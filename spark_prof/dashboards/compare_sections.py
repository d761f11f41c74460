"""Sections of a comparison: its recordings and set-ups, and where the difference comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from statistics import fmean

from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    Comparison,
    KernelPart,
    LayerPart,
    PhaseComparison,
    StepPart,
    kernels_of,
)
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.obstacles import by_token
from spark_prof.analyzers.token_time import TokenTime
from spark_prof.dashboards import cells
from spark_prof.dashboards.compare_gate import (
    SideNames,
    by_share,
    by_us,
    numbers,
    shown_part,
    span,
    verdict,
)
from spark_prof.dashboards.section import Column, Section, listed, table
from spark_prof.dashboards.units import (
    MISSING,
    clean,
    count,
    figure,
    microseconds,
    nothing_as_missing,
    share,
    shorten,
    spans,
)

_LONGEST, _LONGEST_NOTE = 160, 600
_MOST_BESIDE = 20
"""Kernels that are shown beside each other where no change is told."""
_SMALL = 0.001
"""Changes of a smaller share of the step are left out of the tables of layers and kernels."""


def compared(comparisons: Sequence[Comparison]) -> Section:
    """One row a recording: what it is, and its figures."""
    columns = (
        cells.Text("", itemgetter(0)),
        cells.Prose("Source", lambda row: _short(row[1].source)),
        cells.Prose("Model", lambda row: _short(row[1].model)),
        cells.Text("GPU", lambda row: row[1].report.gpu.name, optional=True),
        cells.Count("Steps", lambda row: row[1].report.steps.count),
        cells.Time("Per token", lambda row: _tpot_us(row[1])),
        cells.Rate("Tokens/s", lambda row: (us := _tpot_us(row[1])) and 1e6 / us, optional=True),
    )
    sides = (comparisons[0].sides[0], *(comparison.sides[1] for comparison in comparisons))
    names = (comparisons[0].names[0], *(comparison.names[1] for comparison in comparisons))
    rows = [
        (name if len(side) == 1 else f"{name}, {number}", recording)
        for name, side in zip(names, sides, strict=True)
        for number, recording in enumerate(side, start=1)
    ]
    intro = [f"{names[0]} is the reference."]
    times = {name: time for name, side in rows if (time := _token_time(side)) is not None}
    if len({time.batch for time in times.values()}) > 1:
        sizes = (
            f"of {name} at batch {time.batch}" if time.batch else f"of {name} at all batch sizes"
            for name, time in times.items()
        )
        intro.append(f"Time per token: {', '.join(sizes)}, where most of their time is.")
    if any(time.profiled_us for time in times.values()):
        intro.append(
            "Time per token is that of steps that were only timed, where there are any; all other "
            "tables are of profiled steps."
        )
    return table("compare_sides", "What is compared", rows, columns, intro)


def setup(comparison: Comparison, names: SideNames) -> Section:
    """The settings in which the recordings differ."""
    columns = (
        cells.Text("", "group"),
        cells.Prose("Setting", "name"),
        cells.Prose(names.a, lambda row: _short(row.a)),
        cells.Prose(names.b, lambda row: _short(row.b)),
    )
    intro = ("What both recordings tell and tell differently; what one does not tell is a dash.",)
    return table(
        _id("setup", names), "What differs in the set-up", comparison.setup, columns, intro
    )


def whole_figures(comparison: Comparison, names: SideNames) -> Section:
    """Figures of the recordings as a whole: coverage, conversions, clocks."""
    columns = (Column("Figure"), *numbers(names.a, names.b))
    rows = [
        (f"kernel time with a known {kind}", *_mean_share(comparison, f"coverage.{kind}"))
        for kind in ("layer", "component", "engine")
    ]
    rows += [
        (
            "of the kernel time for format conversions",
            *_mean_share(comparison, "conversions.share"),
        ),
        ("clock after the last step", _clock(comparison.a), _clock(comparison.b)),
    ]
    filled_rows = tuple(row for row in rows if row[1:] != (MISSING, MISSING))
    return Section(_id("others", names), "Coverage, conversions, clocks", columns, filled_rows)


def findings(comparison: Comparison, names: SideNames) -> Section:
    """The findings that only one side has."""
    sides = ((names.a, *comparison.sides), (names.b, *comparison.sides[::-1]))
    rows = []
    for name, side, other in sides:
        keys = {finding.key for recording in other for finding in recording.report.findings}
        for finding in (row for recording in side for row in recording.report.findings):
            if finding.key in keys:
                continue
            cost = microseconds(1e3 * finding.ms_per_token) if finding.ms_per_token else MISSING
            rows.append((f"only {name}", cost, finding.text, finding.key))
            keys.add(finding.key)
    columns = (
        Column("Side"),
        *numbers("Per token"),
        Column("Finding", "prose"),
        Column("Id", optional=True),
    )
    return Section(_id("findings", names), "Findings of one side only", columns, tuple(rows))


def notes(comparison: Comparison, names: SideNames) -> Section:
    """What to know before believing the figures."""
    return listed(_id("notes", names), "Caveats", comparison.notes, _LONGEST_NOTE)


def _mean_share(comparison: Comparison, path: str) -> tuple[str, str]:
    """A share of both sides' reports, the mean of their recordings."""
    get = attrgetter(path)
    a, b = (share(fmean(get(recording.report) for recording in side)) for side in comparison.sides)
    return a, b


def _clock(side: ComparedRecording) -> str:
    clocks = side.report.gpu.clocks
    return f"{clocks.sm_mhz:,} MHz" if clocks else MISSING


def _token_time(side: ComparedRecording) -> TokenTime | None:
    headline = side.report.steps.headline_and_screen
    return headline.time if headline is not None and headline.time.token_us > 0 else None


def _tpot_us(side: ComparedRecording) -> float | None:
    return time.token_us if (time := _token_time(side)) is not None else None


def _short(text: str) -> str:
    return shorten(clean(text), _LONGEST) or MISSING


def steps(phase: PhaseComparison, names: SideNames) -> Section:
    """The step itself: as each side ran it, by size, and what of it is the mix of sizes."""
    size = "Batch" if phase.phase == "decode" else "Prompt tokens"
    columns = (
        Column("Steps"),
        *_columns_of_change(names),
        *numbers(f"Steps {names.a}", f"Steps {names.b}", optional=True),
    )
    every = [sum(getattr(row, side) for row in phase.sizes) for side in ("steps_a", "steps_b")]
    rows = []
    comparable = phase.obstacle is None
    if len(phase.sizes) > 1 or not phase.alike:
        # The work of these differs: each side's own figure, and no change.
        rows.append(("all, as they ran", *_row(phase.whole, comparable=False), *map(count, every)))
    rows += [
        (
            f"{size.lower()} {count(row.size)}" if row.size else "all",
            *_of_size(row.median, comparable),
            count(row.steps_a),
            count(row.steps_b),
        )
        for row in phase.sizes
    ]
    if len([row for row in phase.sizes if row.weight]) > 1:
        rows.append(
            (f"same sizes, as often as in {names.a}", *_row(phase.like, comparable), "", "")
        )
    if phase.token and by_token(phase):
        rows.append(("a token of a sequence", *_row(phase.token, comparable), "", ""))
    intro = [f"Median time of a {phase.unit}." if phase.unit == "step" else "Time in all."]
    if phase.unit == "prompt token":
        intro = ["Median time of a prompt's token; no two steps had the same number of them."]
    if comparable and abs(phase.mix_us) > _SMALL * phase.whole.a:
        intro.append(f"That the sides ran steps of other sizes explains {by_us(phase.mix_us)}.")
    if comparable and (context := phase.context):
        intro.append(
            f"Contexts differ ({context.tokens_a:,.0f} against {context.tokens_b:,.0f} tokens): "
            f"a step grows by {1000 * context.us_per_token:.1f} ns a token, which explains "
            f"{by_us(context.us)} ({by_us(context.low)} to {by_us(context.high)}) of it."
        )
    title = f"{'Recorded' if phase.phase == 'unknown' else phase.phase.capitalize()} steps"
    if phase.unit == "recording":
        title = "Recordings"
    return Section(_id(f"steps_{phase.phase}", names), title, columns, tuple(rows), tuple(intro))


def components(phase: PhaseComparison, names: SideNames, kernels: bool = False) -> Section:
    """Which components and gaps the difference consists of.

    Args:
        kernels: whether the answer is about them, so that their sum is a row.
    """
    columns = (
        Column("Part"),
        *_columns_of_change(names),
        *numbers(f"Kernels {names.a}", f"Kernels {names.b}", optional=True),
    )
    name, comparable = _id(f"components_{phase.phase}", names), phase.obstacle is None
    rows = [
        (
            shown_part(part.name),
            *_row(part.change, comparable),
            _calls(part.calls_a),
            _calls(part.calls_b),
        )
        for part in phase.parts
    ]
    if kernels:
        rows.append(("all kernels", *_row(kernels_of(phase), comparable), "", ""))
    if not comparable:
        whole = "recording" if phase.unit == "recording" else "typical step"
        rows.append((whole, *_row(phase.typical, comparable=False), "", ""))
        both = ("Both sides beside each other, of what is not comparable.",)
        return Section(name, f"Parts of a {phase.one}", columns, tuple(rows), both)
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
    title = f"Where the difference of a {phase.one} comes from"
    return Section(name, title, columns, tuple(rows), intro)


def layers(phase: PhaseComparison, names: SideNames) -> Section:
    """The layers that differ beyond noise."""
    comparable = phase.obstacle is None
    differ = [row for row in phase.layers if comparable and _counts(phase, row.change)]
    columns = (
        cells.Text("Layer", "layer"),
        *_columns_of_change(names),
        cells.Prose("Most of it", lambda row: _most(phase, row), optional=True),
    )
    unchanged = [row.layer for row in phase.layers if row not in differ and row.layer is not None]
    intro = f"Time of one layer in a typical {phase.unit}; layers that do not differ are left out"
    intro += f": {spans(unchanged)}." if unchanged else "."
    title = f"Layers that differ in a {phase.one}"
    return table(_id(f"layers_{phase.phase}", names), title, differ, columns, (intro,))


def kernels(phase: PhaseComparison, names: SideNames) -> Section:
    """The kernels that differ beyond noise, and those of one side only."""
    comparable = phase.obstacle is None
    differ = [row for row in phase.kernels if _counts(phase, row.change)]
    if not comparable:
        longest = sorted(phase.kernels, key=lambda row: -max(row.change.a, row.change.b))
        differ = longest[:_MOST_BESIDE]
    called = cells.called(row.name for row in differ)
    where = {"only a": f"only {names.a}", "only b": f"only {names.b}"}
    columns = (
        cells.Name("Kernel", lambda row: called[row.name]),
        cells.Text("Component", "component"),
        cells.SomeTime(names.a, "change.a"),
        cells.SomeTime(names.b, "change.b"),
        cells.Formatted("Change", lambda row: by_us(row.change.us) if comparable else MISSING),
        cells.Text("95 %", lambda row: span(row.change) if comparable else MISSING, optional=True),
        cells.Text("In", lambda row: where.get(row.where, row.where), optional=True),
        cells.Formatted("Calls", lambda row: _both(*map(_calls, (row.calls_a, row.calls_b))),
                      optional=True),
        cells.Text("Layers", _layers_of, optional=True),
        cells.Text("Execution unit", lambda row: _both(row.engine_a, row.engine_b), optional=True),
    )  # fmt: skip
    intro = (
        f"Time in a typical {phase.unit}. Kernels are matched by their names within a component, "
        "without what changes from compilation to compilation; one that was replaced stands here "
        f"twice, once as only {names.a} and once as only {names.b}.",
    )
    title = f"Kernels {'that differ in' if comparable else 'of'} a {phase.one}"
    return table(_id(f"kernels_{phase.phase}", names), title, differ, columns, intro)


def engines(phase: PhaseComparison, names: SideNames) -> Section:
    """The components that compute on another engine, in another precision or from other weights."""
    rows = [part for part in phase.parts if _computes_otherwise(part)]
    columns = (
        cells.Text("Component", "name"),
        cells.Prose(names.a, lambda part: _mix(part.engines_a)),
        cells.Prose(names.b, lambda part: _mix(part.engines_b)),
        cells.Formatted(
            "Change", lambda part: MISSING if phase.obstacle else by_us(part.change.us)
        ),
    )
    intro = ("Share of the component's kernel time in decode steps, by engine and precision.",)
    title = "Engine, precision or weights that changed"
    return table(_id(f"engines_{phase.phase}", names), title, rows, columns, intro)


def _id(part: str, names: SideNames) -> str:
    """The id of a section; only what is compared third and later bears its letter."""
    return f"compare_{part}" + (f"_{names.letter}" if names.letter != "b" else "")


_OF_CHANGE: tuple[Callable[[Change], str], ...] = (
    lambda change: nothing_as_missing(change.a),
    lambda change: nothing_as_missing(change.b),
    lambda change: by_us(change.us),
    by_share,
    span,
    verdict,
)


def _columns_of_change(names: SideNames) -> tuple[Column, ...]:
    """The columns of a table whose records have a change."""
    titles = (
        *numbers(names.a, names.b, "Change", ""),
        Column("95 %", optional=True),
        Column(f"{names.b} is"),
    )

    def showing(column: Column, write: Callable[[Change], str]) -> Column:
        return replace(column, cell=lambda row: write(row.change))

    return tuple(map(showing, titles, _OF_CHANGE))


def _row(change: Change, comparable: bool = True) -> tuple[str, ...]:
    """Cells of a change; both sides' figures alone where no change is told."""
    if comparable:
        return tuple(write(change) for write in _OF_CHANGE)
    return (nothing_as_missing(change.a), nothing_as_missing(change.b), *("",) * 4)


def _of_size(change: Change | None, comparable: bool) -> tuple[str, ...]:
    """Cells of the steps of one size."""
    if change is None:
        return (*(MISSING,) * 5, "not compared")
    if not math.isfinite(change.low):
        return (*_row(change, comparable=False)[:-1], "too few")
    return _row(change, comparable)


def _counts(phase: PhaseComparison, change: Change) -> bool:
    return change.sure and abs(change.us) >= _SMALL * max(phase.typical.a, phase.typical.b)


def _most(phase: PhaseComparison, whole: LayerPart) -> str:
    """The components that most of a layer's change is in."""
    rows = [
        row
        for row in phase.layer_parts
        if row.layer == whole.layer
        and abs(row.change.us) >= abs(whole.change.us) / 4
        and row.change.sure
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
    shares = ", ".join(f"{share(part)} {label}" for label, part in engines if part >= 0.005)
    return shares or MISSING


def _computes_otherwise(part: StepPart) -> bool:
    a, b = dict(part.engines_a), dict(part.engines_b)
    return any(abs(a.get(label, 0.0) - b.get(label, 0.0)) >= 0.05 for label in {*a, *b})
