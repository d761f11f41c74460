"""Sections about time: the steps, the components they spend it on and what adds up to them."""

from __future__ import annotations

from spark_prof.analyzers.breakdown import ComponentRow
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_accounting import Books, Spread
from spark_prof.dashboards.about_run import on_cpu
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    difference,
    microseconds,
    nothing_as_missing,
    share,
)
from spark_prof.dashboards.section import Column, Section

_MUCH_UNNAMED = 0.05

_SPREAD = tuple(Column(name, "number") for name in ("Median", "99th percentile", "Mean"))


def _spread(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return MISSING, MISSING, MISSING
    return microseconds(spread.median), microseconds(spread.p99), microseconds(spread.mean)


def steps(report: Report) -> Section:
    """Says what an output token costs and which steps there were."""
    found = report.steps
    candidates = (
        ("Output token", found.decode if found.tpot_us else 0, found.tpot_us),
        ("Decode step", found.decode, found.decode_us),
        ("Prefill step", found.prefill, found.prefill_us),
        ("Mixed step", found.mixed, found.mixed_us),
        ("Step", found.unknown if found.unknown_us else 0, found.unknown_us),
    )
    rows = tuple(
        (name, count(number), *_spread(spread)) for name, number, spread in candidates if number
    )
    sentence = f"{counted(found.count, 'step')} in {microseconds(report.wall_us)}"
    if found.scheduled_tokens:
        sentence += (
            f" computed {counted(found.scheduled_tokens, 'token')}, "
            f"{count(found.prompt_tokens)} of them of prompts; "
            f"the requests received {count(found.tokens)}"
        )
    intro = [f"{sentence}."]
    if rows and found.unknown == found.count:
        intro.append("Nothing tells which steps read prompts and which generate tokens.")
    columns = (Column(""), Column("Steps", "number"), *_SPREAD)
    heading = "Time of a step" if found.unknown == found.count else "Time per output token"
    return Section("steps", heading, columns, rows, tuple(intro))


def components(report: Report) -> Section:
    """Says what the time goes to, in a decode step (any step, without one) and over the window."""
    # A step of a source that has sums only is no step that an engine ran.
    steps = report.steps.count if report.books else 0
    decode_us = sum(row.decode_us for row in report.components)
    by_decode = decode_us > 0

    def part(row: ComponentRow) -> float:
        return row.decode_us / decode_us if by_decode else row.share

    def per_step(row: ComponentRow) -> float:
        return row.decode_us_per_step if by_decode else row.us / steps if steps else 0.0

    ordered = sorted(report.components, key=lambda row: (-part(row), -row.us))
    rows = tuple(
        (
            clean(row.name),
            nothing_as_missing(per_step(row)),
            share(part(row)) if by_decode and part(row) else MISSING,
            part(row),
            nothing_as_missing(row.us),
            share(row.share),
            nothing_as_missing(row.prefill_us),
            nothing_as_missing(row.mixed_us),
            count(row.kernels),
        )
        for row in ordered
    )
    columns = (
        Column("Component"),
        Column("A decode step" if by_decode else "A step", "number"),
        Column("Share", "number"),
        Column("", "bar"),
        Column("All steps" if report.books else "Time", "number"),
        Column("Share", "number"),
        Column("Prefill", "number", optional=True),
        Column("Mixed", "number", optional=True),
        Column("Operators" if on_cpu(report) else "Kernels", "number", optional=True),
    )
    intro: tuple[str, ...] = ()
    unnamed = sum(row.share for row in report.components if row.name == "other")
    if unnamed > _MUCH_UNNAMED:
        intro = (
            f"{share(unnamed)} of the time has no component (other): these kernels carry no range "
            "and their names do not tell. See the notes at the end.",
        )
    return Section("components", "What the time goes to", columns, rows, intro)


def accounting(report: Report) -> Section:
    """Shows that the parts of all steps add up to them, and what the engine's own clock says."""
    # Where all steps are of one phase, both say the same.
    shown = report.books[1:] if len(report.books) == 2 else report.books
    rows = tuple(_accounting_row(entry) for entry in shown if entry.steps)
    unit = "Operators" if on_cpu(report) else "Kernels"
    columns = (
        Column("Steps"),
        Column("Count", "number", optional=True),
        Column(unit, "number"),
        Column("+ Copies", "number"),
        Column("- Overlap", "number"),
        Column("+ Gaps", "number"),
        Column("+ Residual", "number", optional=True),
        Column("= Steps", "number"),
        Column("Residual", "number"),
        Column("Engine", "number"),
        Column("Off by", "number", optional=True),
    )
    intro: tuple[str, ...] = ()
    if report.books:
        whole = report.books[0]
        copies = f"{microseconds(whole.copies_us)} of copies, " if whole.copies_us else ""
        intro = (
            f"Over the window: {microseconds(whole.kernels_us)} of {unit.lower()}, "
            f"{microseconds(whole.union_us)} with what overlaps counted once, {copies}"
            f"in {microseconds(report.wall_us)} from the first step's start to the last one's end.",
            "Each row is the sum over its steps, with the engine's own clock beside it."
            if whole.engine_us is not None
            else "Each row is the sum over its steps.",
        )
    return Section("books", "Step time accounting", columns, rows, intro)


_PHASES = {"all": "any", "unknown": "phase unknown"}


def _accounting_row(entry: Books) -> tuple[str, ...]:
    parts = (entry.overlap_us, entry.gap_us, entry.residual_us, entry.step_us)
    return (
        _PHASES.get(entry.phase) or clean(entry.phase),
        count(entry.steps),
        microseconds(entry.kernels_us),
        nothing_as_missing(entry.copies_us),
        *map(microseconds, parts),
        f"{entry.residual_percent:.2f} %",
        microseconds(entry.engine_us),
        difference(entry.engine_us, entry.step_us),
    )


def overhead(report: Report) -> Section:
    """The profiling overhead, where steps that were not profiled were timed in the same run."""
    columns = (
        Column("Requests", "number"),
        Column("Profiled", "number"),
        Column("Not profiled", "number"),
        Column("Ratio", "number"),
        Column("Lowest to highest"),
        Column("Stretches", "number", optional=True),
        Column("Whole run", "number"),
    )
    rows = tuple(
        (
            count(row.batch_size),
            microseconds(row.watched_us),
            microseconds(row.timed_us),
            f"{row.ratio:.3f} x",
            f"{row.lowest:.3f} to {row.highest:.3f} x",
            count(row.stretches),
            f"{row.run_ratio:.3f} x",
        )
        for row in report.overhead
    )
    intro = (
        "Stretches of profiled decode steps took turns with steps that were not profiled. The "
        "whole run contains both and the switches between them.",
    )
    return Section("overhead", "Profiling overhead", columns, rows, intro)
