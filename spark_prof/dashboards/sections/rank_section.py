"""A parallel run: what its ranks do, where they wait for each other, and their clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from spark_prof.analyzers.model import ClockRow, CollectiveRow, RankRow, Report
from spark_prof.analyzers.views.step_series import HeldUp, held_up
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import (
    COLORS,
    NEUTRAL,
    SHADES,
    Plot,
    add_bars,
    add_map,
    label,
    new_figure,
    set_time_axes,
)
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.sections import run_section
from spark_prof.dashboards.units import (
    MISSING,
    count,
    counted,
    figure,
    microseconds,
    share,
    shorten,
)

_MOST_STEPS = 8
_MOST_RANKS = 256
_MOST_BARS = 12
_LONGEST_PROSE = 1000
_LONGEST_NAME = 40
_ROUNDING = 1e-6


def _other_kernels_us(row: RankRow) -> float:
    return max(row.kernels_us - (row.wait_us or 0.0) - (row.transfer_us or 0.0), 0.0)


def _not_matched_us(row: RankRow) -> float | None:
    """What of its time in collectives is neither in Waiting nor in Transfer; None for nothing."""
    rest = (row.collective_us or 0.0) - (row.wait_us or 0.0) - (row.transfer_us or 0.0)
    return rest if rest > _ROUNDING * (row.collective_us or 0.0) else None


_PARTS: tuple[tuple[str, str, str, Callable[[RankRow], float]], ...] = (
    ("other kernels", SHADES[1], "", _other_kernels_us),
    ("transfer", COLORS["collective"], "", lambda row: row.transfer_us or 0.0),
    ("waiting", SHADES[0], "/", lambda row: row.wait_us or 0.0),
    ("gaps", NEUTRAL, ".", lambda row: row.gap_us or 0.0),
)
"""What a rank's step consists of: name, colour, pattern, and its time in all steps."""
_RANK = cells.Text("Rank", lambda row: figure(row.rank, "d"))


def ranks(report: Report) -> Section:
    """Compares the ranks of a parallel run."""
    columns = (
        _RANK,
        cells.Count("Steps", "steps"),
        cells.Time("In steps", "step_us"),
        cells.Time("Kernels", "kernels_us"),
        cells.Time("Gaps", "gap_us"),
        cells.Time("Collectives", "collective_us"),
        cells.Time("Waiting", "wait_us"),
        cells.Time("Transfer", "transfer_us", optional=True),
        cells.Time("Not matched", _not_matched_us),
        cells.Count("Slowest in", "slowest_steps"),
        cells.Time("Held up others", "held_up_us", optional=True),
    )
    intro = []
    if parallel := run_section.parallel_run(report):
        intro.append(f"{parallel}.")
    if report.collectives.matched:
        intro.append(
            "Waiting: in matched collectives, until the last rank had come. Transfer: from then "
            "on. Slowest in: steps in which the other ranks waited for this one the longest, those "
            "that read prompts or use a kernel for the first time too; a straggler is told from "
            "decode steps without these."
        )
    whole = sum(row.collective_us or 0.0 for row in report.ranks)
    if rest := sum(_not_matched_us(row) or 0.0 for row in report.ranks):
        intro.append(
            f"Not matched: {share(rest / whole)} of the time in collectives, of which nothing "
            "tells how much was waiting. A rank that waits has more of it than one that does not."
        )
    intro += [shorten(note, _LONGEST_PROSE) for note in report.collectives.notes]
    return table("ranks", "Ranks", report.ranks if len(report.ranks) > 1 else (), columns, intro)


def collectives(report: Report) -> Section:
    """Says where ranks wait for each other: by kind of collective and what ran before it."""
    collectives = report.collectives
    groups: dict[tuple[str, str], list[CollectiveRow]] = defaultdict(list)
    for item in collectives.items:
        groups[item.kind, item.after].append(item)
    total = collectives.wait_us + collectives.transfer_us
    columns = (
        cells.Text("Collective", lambda items: items[0].kind, longest=_LONGEST_NAME),
        cells.Text("After", lambda items: items[0].after, longest=_LONGEST_NAME, missing=MISSING),
        cells.Count("Calls", lambda items: sum(item.calls for item in items)),
        cells.Time("Waiting", _wait_us),
        cells.Time("Transfer", lambda items: sum(item.transfer_us for item in items)),
        cells.Share(
            "Share",
            lambda items: sum(i.wait_us + i.transfer_us for i in items) / total if total else None,
        ),
        cells.Text("Longest wait in", _longest_wait, optional=True),
    )
    intro = [
        f"{counted(collectives.matched, 'collective')} of {counted(collectives.steps, 'step')} "
        "were found on every rank of their group. Times are means over the ranks."
    ]
    if collectives.unmatched:
        intro.append(f"{counted(collectives.unmatched, 'call')} on single ranks were not matched.")
    rows = sorted(groups.values(), key=lambda items: -_wait_us(items))
    return table("collectives", "Waiting for other ranks", rows, columns, intro)


def slow_steps(report: Report) -> Section:
    """Names the slowest rank of the steps that waited the most."""
    steps = sorted(report.collectives.slow_steps, key=lambda step: -step.wait_us)
    staged = any(step.stage or step.replica for step in steps)
    longest = steps[:_MOST_STEPS]
    columns = (
        cells.Count("Step", "step"),
        cells.Text(
            "Group", lambda step: f"stage {step.stage}, replica {step.replica}" if staged else ""
        ),
        cells.Formatted("Slowest rank", lambda step: figure(step.slowest, "d")),
        cells.Time("Held up others", "held_up_us"),
        cells.Time("Waiting", "wait_us"),
    )
    intro = (
        f"The {len(longest)} of {counted(len(steps), 'step')} in which the ranks waited the "
        "longest; JSON has all of them.",
    )
    return table("slow_steps", "Steps with the longest waits", longest, columns, intro)


def clocks(report: Report) -> Section:
    """Says how far the ranks' clocks are from each other, and how that is known."""
    rows = report.collectives.clocks

    def within(row: ClockRow) -> str | None:
        return None if row.uncertainty_us is None else f"± {microseconds(row.uncertainty_us)}"

    def basis(row: ClockRow) -> str:
        events = "steps" if row.basis == "scheduler" else "collectives"
        return f"{count(row.events)} {events}" if row.events else MISSING

    columns = (
        _RANK,
        cells.Time("Ahead by", "offset_us"),
        cells.Formatted("", within),
        cells.Formatted("Drift", lambda row: figure(row.drift_ppm or None, ".1f", " ppm")),
        cells.Text("From", basis),
        cells.Prose("Verdict", _verdict),
    )
    intro = (f"Against the clock of rank {rows[0].reference if rows else 0}.",)
    return table("clocks", "Clocks of the ranks", rows, columns, intro)


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


def _wait_us(items: list[CollectiveRow]) -> float:
    return sum(item.wait_us for item in items)


def _longest_wait(items: list[CollectiveRow]) -> str:
    worst = max(items, key=lambda item: item.wait_us)
    if worst.layer is None or worst.wait_us <= 0:
        return MISSING
    return f"layer {worst.layer}: {microseconds(worst.wait_us)}"


def rank_bars(report: Report) -> Plot:
    """Draws what each rank does in a mean step; every bar carries its rank as customdata."""
    rows = [row for row in report.ranks if row.steps][:_MOST_RANKS]
    names = [f"rank {row.rank}" for row in rows]
    height = 120 + 24 * max(len(rows), 2)
    drawn = new_figure("What each rank does in a mean step", height, legended=True, barmode="stack")
    for place, (*_, part) in enumerate(_PARTS):
        times = [part(row) / row.steps for row in rows]
        if any(times):
            _add_part(drawn, names, times, place, customdata=[row.rank for row in rows])
    most = max((sum(part(row) for *_, part in _PARTS) / row.steps for row in rows), default=1.0)
    set_time_axes(drawn, most, room=1.02)
    return drawn


def waits_for_ranks(report: Report) -> Plot:
    """Draws how long the others waited for each rank, over the steps.

    Cells in which a rank came last carry the worst of their steps as customdata, after the rank
    that has that number for it.
    """
    ranks = [row.rank for row in report.ranks][:_MOST_RANKS]
    waits = held_up(report.collectives.slow_steps, ranks)
    names = [f"rank {rank}" for rank in ranks]
    columns = [
        f"{first:,}" if first == last else f"{first:,} to {last:,}"
        for first, last in zip(waits.first_step.tolist(), waits.last_step.tolist(), strict=True)
    ]
    title = "How long the others waited for each rank"
    drawn = new_figure(title, 140 + 24 * max(len(ranks), 2))
    add_map(drawn, range(len(columns)), names, waits.us, hoverinfo="skip")
    drawn.update_traces(colorbar={"title": {"text": "us a step"}})
    _add_marks(drawn, waits, names, columns)
    places = list(range(0, len(columns), max(1, len(columns) // 8)))
    tick_texts = [columns[place] for place in places]
    drawn.update_xaxes(
        tickvals=places, ticktext=tick_texts, title={"text": "steps"}, showgrid=False
    )
    drawn.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return drawn


def waits_by_collective(report: Report) -> Plot:
    """Draws where ranks wait: by kind of collective, what ran before it, and its layer."""
    items = sorted(report.collectives.items, key=lambda item: -(item.wait_us + item.transfer_us))
    longest, steps = items[:_MOST_BARS], max(report.collectives.steps, 1)
    names = []
    for number, item in enumerate(longest, 1):
        layer = "" if item.layer is None else f", layer {item.layer}"
        after = f" after {label(item.after)}" if item.after else ""
        names.append(f"{number}. {label(item.kind)}{after}{layer}")
    rest = f", the {len(longest)} longest of {len(items)}" if len(items) > len(longest) else ""
    height = 120 + 26 * max(len(longest), 2)
    drawn = new_figure(f"Collectives of a mean step{rest}", height, legended=True, barmode="stack")
    _add_part(drawn, names, [item.wait_us / steps for item in longest], 2)
    _add_part(drawn, names, [item.transfer_us / steps for item in longest], 1)
    most = max((item.wait_us + item.transfer_us for item in longest), default=steps) / steps
    set_time_axes(drawn, most, room=1.05)
    return drawn


def _add_part(
    drawn: Plot, names: list[str], times: list[float], place: int, **options: Any
) -> None:
    name, color, pattern, _ = _PARTS[place]
    looks = {"hover": f"%{{y}}, {name}: %{{text}}", "pattern": pattern, "name": name} | options
    add_bars(drawn, names, times, color, with_times=False, **looks)


def _add_marks(drawn: Plot, waits: HeldUp, names: list[str], columns: list[str]) -> None:
    """Lays clear marks over the cells: a heat map tells nobody what was clicked."""
    rows, places = np.nonzero(waits.last)
    cells = list(zip(rows.tolist(), places.tolist(), strict=True))
    drawn.add_scatter(
        x=[place for _, place in cells],
        y=[names[row] for row, _ in cells],
        mode="markers",
        marker={"size": 16, "symbol": "square", "color": "rgba(0,0,0,0)"},
        customdata=[(waits.leads[row], int(waits.worst[row, place])) for row, place in cells],
        text=[
            f"{names[row]}, steps {columns[place]}: last in "
            f"{counted(int(waits.last[row, place]), 'step')}, the others waited "
            f"{microseconds(float(waits.us[row, place]))} a step"
            for row, place in cells
        ],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )


def replicas(report: Report) -> Section:
    """What each replica had to do; one that has much less was given fewer requests."""
    tokens = sum(row.output_tokens or 0 for row in report.replicas)
    columns = (
        cells.Text("Replica", lambda row: figure(row.replica, "d")),
        cells.Text("Rank", lambda row: figure(row.rank, "d")),
        cells.Count("Steps", "steps"),
        cells.Time("In steps", "busy_us"),
        cells.Count("Prompt tokens", "prompt_tokens"),
        cells.Count("Output tokens", "output_tokens"),
        cells.Share("Of the output", lambda row: _share(row.output_tokens, tokens)),
        cells.Text("Requests that decode", lambda row: figure(row.batch, ".1f")),
    )
    intro = (
        "Each replica gets requests of its own. Requests that decode: mean over the steps in "
        "which any does.",
    )
    return table("replicas", "Load of the replicas", report.replicas, columns, intro)


def _share(output: int | None, whole: int) -> float | None:
    return output / whole if whole and output is not None else None
