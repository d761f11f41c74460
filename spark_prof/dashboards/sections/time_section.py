"""Time: the steps and the slow ones of them, their components, and what adds up to a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_prof.analyzers.breakdown import ComponentRow
from spark_prof.analyzers.facts import told_first_uses
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.report_notes import Pauses
from spark_prof.analyzers.views.step_series import BatchTimes, ContextFit, StepSeries
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import COLORS, NEUTRAL, Plot, bars, label
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.sections.run_section import on_cpu
from spark_prof.dashboards.sections.token_section import unnamed
from spark_prof.dashboards.units import (
    MISSING,
    WrittenFigure,
    count,
    counted,
    difference,
    figure,
    microseconds,
)
from spark_prof.vocabulary import PHASES

_MOST_SLOW = 20
_PHASES = {"all": "any", "unknown": "phase unknown"}


def steps(report: Report) -> Section:
    """Says what an output token costs and which steps there were."""
    steps = report.steps
    if not report.run.tells_steps:
        intro = [f"The recording lasts {microseconds(report.wall_us)}; nothing tells its steps."]
        return table("steps", "Steps", (), (), intro)
    candidates = (
        ("Output token", steps.decode if steps.tpot_us else 0, steps.tpot_us),
        ("Decode step", steps.decode, steps.decode_us),
        ("Prefill step", steps.prefill, steps.prefill_us),
        ("Mixed step", steps.mixed, steps.mixed_us),
        ("Step", steps.unknown if steps.unknown_us else 0, steps.unknown_us),
    )
    rows = [row for row in candidates if row[1]]
    sentence = f"{counted(steps.count, 'step')} in {microseconds(report.wall_us)}"
    if steps.scheduled_tokens:
        sentence += (
            f" computed {counted(steps.scheduled_tokens, 'token')}, "
            f"{count(steps.prompt_tokens)} of them of prompts; "
            f"the requests received {count(steps.tokens)}"
        )
    intro = [f"{sentence}."]
    token = steps.token
    if token and token.mixed:
        intro.append(
            f"Over all steps that decode, {count(token.mixed)} of which read prompts as well, a "
            f"token takes {microseconds(token.token_us)}."
        )
    intro += told_first_uses(steps)
    if steps.preemptions:
        intro.append(f"{counted(steps.preemptions, 'preemption')} for want of KV cache.")
    if rows and steps.unknown == steps.count:
        intro.append(
            "These are steps of a training."
            if report.run.training
            else "Nothing tells which steps read prompts and which generate tokens."
        )
    columns = (
        cells.Text("", lambda row: row[0]),
        cells.Count("Steps", lambda row: row[1]),
        cells.Time("Median", lambda row: row[2] and row[2].median),
        cells.Time("99th percentile", lambda row: row[2] and row[2].p99),
        cells.Time("Mean", lambda row: row[2] and row[2].mean),
    )
    heading = "Time of a step" if steps.unknown == steps.count else "Time per output token"
    return table("steps", heading, rows, columns, intro)


def components(report: Report) -> Section:
    """Says what the time goes to, in a decode step (any step, without one) and over the window."""
    # A step of a source that has sums only is no step that an engine ran.
    steps = report.steps.count if report.accounts else 0
    decode_us = sum(row.decode_us for row in report.components)
    by_decode = decode_us > 0

    def part(row: ComponentRow) -> float:
        return row.decode_us / decode_us if by_decode else row.share

    def per_step(row: ComponentRow) -> float:
        return row.decode_us_per_step if by_decode else row.us / steps if steps else 0.0

    columns = (
        cells.Text("Component", "name"),
        cells.SomeTime("A decode step" if by_decode else "A step", per_step, optional=True),
        cells.Share("Share", lambda row: (by_decode and part(row)) or None),
        cells.Bar("", part),
        cells.SomeTime("All steps" if report.accounts else "Time", "us"),
        cells.Share("Share", "share"),
        cells.SomeTime("Prefill", "prefill_us", optional=True),
        cells.SomeTime("Mixed", "mixed_us", optional=True),
        cells.Count("Operators" if on_cpu(report) else "Kernels", "kernels", optional=True),
    )
    rows = sorted(report.components, key=lambda row: (-part(row), -row.us))
    intro = unnamed(report, "kernels")
    return table("components", "What the time goes to", rows, columns, intro)


def accounting(report: Report) -> Section:
    """Shows that the parts of all steps add up to them, and what the engine's own clock says."""
    whole = report.all_steps
    # Where all steps are of one phase, both say the same.
    rows = report.summed_steps[1:] if len(report.summed_steps) == 2 else report.summed_steps
    unit = "Operators" if on_cpu(report) else "Kernels"
    columns = (
        cells.Text("Steps", lambda row: _PHASES.get(row.phase) or row.phase),
        cells.Count("Count", "sums.steps", optional=True),
        cells.Time(unit, "sums.kernels_us"),
        cells.SomeTime("+ Copies", "sums.copies_us"),
        cells.Time("- Overlap", "sums.overlap_us"),
        cells.Time("+ Gaps", "sums.gap_us"),
        cells.Time("+ Residual", "sums.residual_us", optional=True),
        cells.Time("= Steps", "sums.step_us"),
        cells.Formatted("Residual", lambda row: figure(row.sums.residual_percent, ".2f", " %")),
        cells.Time("Engine", "sums.engine_us"),
        cells.Formatted(
            "Off by", lambda row: difference(row.sums.engine_us, row.sums.step_us), optional=True
        ),
    )
    intro: tuple[str, ...] = ()
    if whole:
        one = "step" if report.run.tells_steps else unit.lower()[:-1]
        copies = f"{microseconds(whole.copies_us)} of copies, " if whole.copies_us else ""
        intro = (
            f"Over the window: {microseconds(whole.kernels_us)} of {unit.lower()}, "
            f"{microseconds(whole.union_us)} with what overlaps counted once, {copies}"
            f"in {microseconds(report.wall_us)} from the first {one}'s start to the last one's "
            "end.",
            "Each row is the sum over its steps, with the engine's own clock beside it."
            if whole.engine_us is not None
            else "Each row is the sum over its steps.",
        )
    if not report.run.tells_steps:
        whole_row = (cells.Text("", lambda _: "recording"), *columns[2:])
        return table("books", "Time accounting", rows[:1], whole_row, intro[:1])
    with_steps = [row for row in rows if row.sums and row.sums.steps]
    return table("books", "Step time accounting", with_steps, columns, intro)


def _stood_still(pauses: Pauses) -> str:
    return (
        f"The engine stood still for the recording {counted(pauses.count, 'time')}, "
        f"{microseconds(pauses.us)} in all, up to {microseconds(pauses.longest_us)}: it wrote what "
        "it had seen. No step contains that."
    )


def overhead(report: Report) -> Section:
    """The profiling overhead: of steps, where some were not profiled, and the pauses between."""
    stood_still = (_stood_still(report.pauses),) if report.pauses else ()
    if report.pauses and not report.overhead:
        pauses = (
            cells.Count("Pauses", "count"),
            cells.Time("In all", "us"),
            cells.Time("Longest", "longest_us"),
            cells.Share("Of the recorded time", "share"),
        )
        return table("overhead", "Profiling overhead", [report.pauses], pauses, stood_still)
    columns = (
        cells.Count("Requests", "batch_size"),
        cells.Time("Profiled", "watched_us"),
        cells.Time("Not profiled", "timed_us"),
        cells.Formatted("Ratio", lambda row: figure(row.ratio, ".3f", " x")),
        cells.Text("Lowest to highest", lambda row: f"{row.lowest:.3f} to {row.highest:.3f} x"),
        cells.Count("Stretches", "stretches", optional=True),
        cells.Formatted("Whole run", lambda row: figure(row.run_ratio, ".3f", " x")),
    )
    intro = (
        "Stretches of profiled decode steps took turns with steps that were not profiled. The "
        "whole run contains both and the switches between them.",
        *stood_still,
    )
    return table("overhead", "Profiling overhead", report.overhead, columns, intro)


def batches(times: Sequence[BatchTimes]) -> Section:
    """Sets decode steps of different sizes beside each other."""
    columns = (
        cells.Count("Requests", "requests"),
        cells.Count("Steps", "steps"),
        cells.Time("Median step", "median_us"),
        cells.Formatted(
            "10 to 90 % of the steps",
            lambda row: f"{microseconds(row.p10_us)} to {microseconds(row.p90_us)}",
        ),
        cells.Rate("Steps x requests a second", "tokens_per_s"),
    )
    return table("batch-times", "Decode steps by batch size", times, columns)


def contexts(fits: Sequence[ContextFit]) -> Section:
    """Says how much longer a step takes with more context, or why that cannot be told."""

    def within(fit: ContextFit) -> str:
        return MISSING if fit.within_us is None else f"± {microseconds(fit.within_us)}"

    columns = (
        cells.Count("Requests", "requests"),
        cells.Count("Steps", "steps"),
        cells.Formatted(
            "Tokens of context", lambda fit: f"{fit.shortest:,.0f} to {fit.longest:,.0f}"
        ),
        cells.Time("Step at the shortest", "at_shortest_us"),
        cells.Time("For 1,000 tokens more", "slope_us"),
        cells.Formatted("95 %", within),
        cells.Prose("", lambda fit: fit.why_not and f"Not told: {fit.why_not}."),
    )
    intro = (
        "A line through the steps of each batch size, slow steps left out. Context is that of a "
        "mean request; a line says nothing beyond the contexts that were recorded.",
    )
    return table("context-fits", "What context costs", fits, columns, intro)


def slowest(steps: StepSeries) -> Section:
    """Lists slow steps, the longest first."""
    places = np.flatnonzero(steps.slow)
    places = places[np.argsort(-steps.us[places], kind="stable")]
    columns = (
        cells.Count("Step", lambda place: int(steps.step[place])),
        cells.Text("Phase", lambda place: PHASES[steps.phase[place]]),
        cells.Time("Took", lambda place: float(steps.us[place])),
        cells.Count("Requests", lambda place: int(steps.requests[place])),
        cells.SomeCount("Prompt tokens", lambda place: int(steps.prompt_tokens[place])),
        cells.Formatted("Began after", lambda place: _seconds(float(steps.begin_s[place]))),
    )
    intro = (
        f"{counted(len(places), 'step')} took at least 1.5 times the median of the steps of the "
        "same phase, batch size and prompt.",
    )
    return table("slow-steps", "Slow steps", places[:_MOST_SLOW].tolist(), columns, intro)


def component_bars(report: Report) -> Plot:
    """Draws each component's time: in the mean decode step, or over all steps without one."""
    by_decode = any(row.decode_us_per_step > 0 for row in report.components)
    times = {row.name: row.decode_us_per_step if by_decode else row.us for row in report.components}
    names = sorted((name for name, us in times.items() if us > 0), key=lambda name: times[name])
    return bars(
        "Median decode step" if by_decode else "All steps",
        [(label(name), times[name], COLORS.get(name, NEUTRAL)) for name in names],
        [0.0] * len(names),
    )


def _seconds(value: float) -> WrittenFigure:
    """Seconds to the millisecond, which sort beside other times."""
    return WrittenFigure(f"{value:,.3f} s", 1e6 * value)
