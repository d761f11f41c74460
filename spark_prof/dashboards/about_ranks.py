"""Sections about a parallel run: its ranks, where they wait for each other, and their clocks."""

from __future__ import annotations

from collections import defaultdict

from spark_prof.analyzers.model import ClockRow, CollectiveRow, Report
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    microseconds,
    share,
    shorten,
)
from spark_prof.dashboards.section import Column, Section

_MOST_STEPS = 8
_LONGEST_PROSE = 1000
_LONGEST_NAME = 40


def ranks(report: Report) -> Section:
    """Compares the ranks of a parallel run."""
    rows = tuple(
        (
            str(row.rank),
            count(row.steps),
            microseconds(row.step_us),
            microseconds(row.kernels_us),
            microseconds(row.gap_us),
            microseconds(row.wait_us),
            microseconds(row.transfer_us),
            MISSING if row.slowest_steps is None else count(row.slowest_steps),
            microseconds(row.held_up_us),
        )
        for row in report.ranks
    )
    columns = (
        Column("Rank"),
        Column("Steps", "number"),
        Column("In steps", "number"),
        Column("Kernels", "number"),
        Column("Gaps", "number"),
        Column("Waiting", "number"),
        Column("Transfer", "number", optional=True),
        Column("Slowest in", "number"),
        Column("Held up others", "number", optional=True),
    )
    intro = []
    if report.collectives.matched:
        intro.append(
            "Waiting: in collectives, until the last rank had come. Transfer: from then on. "
            "Slowest in: steps in which the other ranks waited for this one the longest."
        )
    intro += [shorten(clean(note), _LONGEST_PROSE) for note in report.collectives.notes]
    return Section("ranks", "Ranks", columns, rows if len(rows) > 1 else (), tuple(intro))


def collectives(report: Report) -> Section:
    """Says where ranks wait for each other: by kind of collective and what ran before it."""
    found = report.collectives
    groups: dict[tuple[str, str], list[CollectiveRow]] = defaultdict(list)
    for item in found.items:
        groups[item.kind, item.after].append(item)
    total = found.wait_us + found.transfer_us
    rows = tuple(
        (
            shorten(clean(kind), _LONGEST_NAME),
            shorten(clean(after), _LONGEST_NAME) or MISSING,
            count(sum(item.calls for item in items)),
            microseconds(wait := sum(item.wait_us for item in items)),
            microseconds(transfer := sum(item.transfer_us for item in items)),
            share((wait + transfer) / total if total else None),
            _worst(items),
        )
        for (kind, after), items in sorted(
            groups.items(), key=lambda group: -sum(item.wait_us for item in group[1])
        )
    )
    columns = (
        Column("Collective"),
        Column("After"),
        Column("Calls", "number"),
        Column("Waiting", "number"),
        Column("Transfer", "number"),
        Column("Share", "number"),
        Column("Longest wait in", optional=True),
    )
    intro = [
        f"{counted(found.matched, 'collective')} of {counted(found.steps, 'step')} were found on "
        "every rank of their group. Times are means over the ranks."
    ]
    if found.unmatched:
        intro.append(f"{counted(found.unmatched, 'call')} on single ranks were not matched.")
    return Section("collectives", "Waiting for other ranks", columns, rows, tuple(intro))


def slow_steps(report: Report) -> Section:
    """Names the slowest rank of the steps that waited the most."""
    found = sorted(report.collectives.slow_steps, key=lambda step: -step.wait_us)
    staged = any(step.stage or step.replica for step in found)
    rows = tuple(
        (
            count(step.step),
            f"stage {step.stage}, replica {step.replica}" if staged else "",
            MISSING if step.slowest is None else str(step.slowest),
            microseconds(step.held_up_us),
            microseconds(step.wait_us),
        )
        for step in found[:_MOST_STEPS]
    )
    columns = (
        Column("Step", "number"),
        Column("Group"),
        Column("Slowest rank", "number"),
        Column("Held up others", "number"),
        Column("Waiting", "number"),
    )
    intro = (
        f"The {len(rows)} of {counted(len(found), 'step')} in which the ranks waited the longest; "
        "JSON has all of them.",
    )
    return Section("slow_steps", "Steps with the longest waits", columns, rows, intro)


def clocks(report: Report) -> Section:
    """Says how far the ranks' clocks are from each other, and how that is known."""
    rows = tuple(
        (
            str(row.rank),
            microseconds(row.offset_us),
            MISSING if row.uncertainty_us is None else f"± {microseconds(row.uncertainty_us)}",
            f"{row.drift_ppm:.1f} ppm" if row.drift_ppm else MISSING,
            f"{count(row.events)} {'steps' if row.basis == 'scheduler' else 'collectives'}"
            if row.events
            else MISSING,
            _verdict(row),
        )
        for row in report.collectives.clocks
    )
    columns = (
        Column("Rank"),
        Column("Ahead by", "number"),
        Column("", "number"),
        Column("Drift", "number"),
        Column("From"),
        Column("Verdict", "prose"),
    )
    reference = report.collectives.clocks[0].reference if rows else 0
    intro = (f"Against the clock of rank {reference}.",)
    return Section("clocks", "Clocks of the ranks", columns, rows, intro)


def _verdict(row: ClockRow) -> str:
    if row.offset_us is None and row.events:
        return "contradicts itself: do not compare its times"
    if row.offset_us is None or row.uncertainty_us is None:
        return "same host, not checked" if row.same_host else "unknown: times are not compared"
    if not row.same_host:
        return "other host: taken off before times are compared"
    if abs(row.offset_us) <= row.uncertainty_us:
        return "same host, agrees"
    return "same host, disagrees: do not trust waits below this"


def _worst(items: list[CollectiveRow]) -> str:
    worst = max(items, key=lambda item: item.wait_us)
    if worst.layer is None or worst.wait_us <= 0:
        return MISSING
    return f"layer {worst.layer}: {microseconds(worst.wait_us)}"
