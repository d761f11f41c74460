"""The order in which a report is read: from what was recorded to what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.charts import Plot
from spark_prof.dashboards.report_verdict import verdict_of
from spark_prof.dashboards.section import Document, Section, document, group_of, listed
from spark_prof.dashboards.sections import (
    audit_section,
    client_section,
    context_section,
    conversion_section,
    counter_section,
    host_section,
    kernel_section,
    layer_section,
    prefill_section,
    rank_section,
    request_section,
    roofline_section,
    run_section,
    speculation_section,
    startup_section,
    time_section,
    token_section,
    waterfall_section,
)
from spark_prof.dashboards.short_report import changes

FIGURES: Mapping[str, Callable[[Report], Plot]] = {
    "waterfall": waterfall_section.floor_waterfall,
    "components": time_section.component_bars,
    "layers": layer_section.layer_heatmap,
    "roofline": roofline_section.kernels_and_memory,
    "context-kinds": context_section.context_lines,
    "host-functions": host_section.flame_graph,
}
"""By the section of the report in which each stands."""


def outline(
    report: Report, *, layer_columns: int | None = None, only: Collection[str] = ()
) -> Document:
    """Turns a report into the document that every renderer draws.

    Sections without rows and columns without figures are left out.

    outline(report, only=("kernels",)).sections[0].id == "kernels"

    Args:
        layer_columns: how many components get a column of their own in the table of the layers;
            None gives one to each.
        only: the sections that will be shown: no other topic of the report is computed, unless one
            of them is not there. None for all.
    """
    parts, title = _sections_by_word(report, layer_columns), run_section.title(report)
    sections = [section for name in parts if name in only for section in parts[name]()]
    if only and {group_of(section) for section in sections if section.rows} >= set(only):
        return document(title, (), sections)
    sections = [section for sections_of in parts.values() for section in sections_of()]
    caveats, verdict = run_section.caveats(report), verdict_of(report)
    return document(title, run_section.headline(report), sections, caveats, verdict)


def words(report: Report) -> tuple[str, ...]:
    """The words of `--section`, in reading order, those without anything to show included."""
    return tuple(_sections_by_word(report, None))


def _sections_by_word(
    report: Report, layer_columns: int | None
) -> dict[str, Callable[[], Iterable[Section]]]:
    """What draws the sections, in their order, by the word with which one asks for them."""
    return {
        "verdict": lambda: [listed("verdict", "", (waterfall_section.speed_and_distance(report),))],
        # A source of sums has nothing but components.
        "waterfall": lambda: [waterfall_section.waterfall(report)] if report.typical_steps else [],
        "findings": lambda: changes(report.findings),
        "roofline": lambda: [roofline_section.kernels(report)],
        "recording": lambda: [run_section.recording(report)],
        "answers": lambda: [run_section.answers(report)],
        "steps": lambda: [time_section.steps(report)],
        "batches": lambda: [token_section.by_batch(report, most=16)],
        "components": lambda: [
            (token_section.step_parts if report.typical_steps else time_section.components)(report)
        ],
        "batch_sizes": lambda: [token_section.batch_sizes(report)],
        "speculation": lambda: speculation_section.sections(report),
        "context": lambda: context_section.sections(report),
        "prefill": lambda: prefill_section.sections(report),
        "host": lambda: host_section.sections(report),
        "layers": lambda: [layer_section.layers(report, layer_columns)],
        "books": lambda: [time_section.accounting(report)],
        "overhead": lambda: [time_section.overhead(report)],
        "requests": lambda: [request_section.requests(report)],
        "clients": lambda: [client_section.agreement(report)],
        "client_runs": lambda: [client_section.runs(report.clients)],
        "replicas": lambda: [rank_section.replicas(report)],
        "ranks": lambda: [rank_section.ranks(report)],
        "collectives": lambda: [rank_section.collectives(report)],
        "slow_steps": lambda: [rank_section.slow_steps(report)],
        "clocks": lambda: [rank_section.clocks(report)],
        "coverage": lambda: [kernel_section.coverage(report)],
        "kernels": lambda: [kernel_section.kernels(report)],
        "machine": lambda: [kernel_section.machine_code(report)],
        "copies": lambda: [kernel_section.copies(report)],
        "floors": lambda: [roofline_section.floors(report)],
        "streamed_weights": lambda: [roofline_section.streamed(report)],
        "shapes": lambda: [counter_section.shapes(report)],
        "counters": lambda: [counter_section.kernels(report)],
        "counter_weights": lambda: [counter_section.weights(report)],
        "conversions": lambda: [conversion_section.attributed(report)],
        "other_conversions": lambda: [conversion_section.uncounted(report)],
        "modules": lambda: [kernel_section.modules(report)],
        "audit": lambda: [audit_section.layers(report.audit)],
        "known": lambda: audit_section.known_issues(report.audit),
        "startup": lambda: startup_section.sections(report.startup, None),
        "memory": lambda: startup_section.measured(report.memory),
        "notes": lambda: [run_section.notes(report)],
    }


def figures(report: Report, only: Collection[str] = ()) -> dict[str, Plot]:
    """The figures of a report by name, in the order in which it is read.

    A figure without anything to show is left out.

    Args:
        only: the sections that will be shown; none for all.
    """
    sections = (section.id for section in outline(report, only=only).sections)
    return _FiguresByName((name, FIGURES[name](report)) for name in sections if name in FIGURES)


class _FiguresByName(dict[str, Plot]):
    """Figures by name, whose error for another name lists those that there are."""

    def __missing__(self, name: str) -> Plot:
        raise KeyError(f"no figure {name!r}; there are {', '.join(self) or 'none'}")
