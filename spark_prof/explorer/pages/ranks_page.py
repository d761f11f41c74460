"""Who waits for whom in a parallel run, and where."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.sections import rank_section
from spark_prof.dashboards.units import microseconds, share
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, widgets
from spark_prof.explorer.state import Sources

_RANKS, _WAITS = "ranks", "waits-for-ranks"


def show(sources: Sources) -> None:
    prepared = sources.prepared
    report = prepared.report
    if len(prepared.ranks) < 2:
        widgets.lines(
            "This recording has one rank: nothing can be compared.",
            "spark-prof record sees every worker of a parallel run by itself (vllm serve with "
            "--tensor-parallel-size 2 or more). Traces that lie apart, one a rank, become one "
            "recording with spark-prof import FOLDER -o BUNDLE.",
        )
        return
    _follow()
    links.finding_cards(links.findings_for(prepared, "ranks"), "ranks")
    _figures(report, prepared)
    for draw in (
        rank_section.replicas,
        rank_section.ranks,
        rank_section.collectives,
        rank_section.slow_steps,
        rank_section.clocks,
    ):
        widgets.section(draw(report))


def _follow() -> None:
    """Goes where the last click leads, before anything is drawn."""
    for rank in links.chosen_points(_RANKS):
        links.go("timeline", rank=int(rank))
    for rank, step in links.chosen_points(_WAITS):
        links.go("timeline", rank=int(rank), step=int(step))


def _figures(report: Report, prepared: Prepared) -> None:
    if any(row.steps and row.kernels_us for row in report.ranks):
        widgets.lines("Click a bar to look at that rank.", *_overlap(report, prepared.rank))
        widgets.figure(rank_section.rank_bars(report), _RANKS, selection=("points",))
    if any(step.slowest is not None for step in report.collectives.slow_steps):
        widgets.lines("Click a cell to see its worst step in the Timeline.")
        figure = rank_section.waits_for_ranks(report)
        widgets.figure(figure, _WAITS, selection=("points",))
    if report.collectives.items:
        widgets.figure(rank_section.waits_by_collective(report), "collectives")


def _overlap(report: Report, rank: int) -> list[str]:
    """How much of the collectives runs beside other work."""
    parts = report.decode_step.parts if report.decode_step else ()
    row = next((part for part in parts if part.name == "collective"), None)
    if row is None or not row.kernel_us:
        return []
    beside = row.kernel_us - row.exclusive_us
    return [
        f"In a decode step of rank {rank} collectives run {microseconds(row.kernel_us)}, "
        f"{share(beside / row.kernel_us)} of it beside other kernels."
    ]
