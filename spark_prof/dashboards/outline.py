"""The order in which a report is read: from what was recorded to what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.charts import Plot
from spark_prof.dashboards.report_verdict import verdict_of
from spark_prof.dashboards.section import Document, document, listed
from spark_prof.dashboards.sections import (
    audit_section,
    client_section,
    context_section,
    conversion_section,
    counter_section,
    issue_section,
    kernel_section,
    layer_section,
    prefill_section,
    rank_section,
    replica_section,
    request_section,
    roofline_section,
    run_section,
    speculation_section,
    time_section,
    token_section,
    token_time_section,
    waterfall_section,
)
from spark_prof.dashboards.short_report import changes

FIGURES: Mapping[str, Callable[[Report], Plot]] = {
    "waterfall": waterfall_section.floor_waterfall,
    "components": time_section.component_bars,
    "layers": layer_section.layer_heatmap,
    "roofline": roofline_section.kernels_and_memory,
    "context-kinds": context_section.context_lines,
}
"""By the section of the report in which each stands."""


def outline(report: Report, *, layer_columns: int | None = None) -> Document:
    """Turns a report into the document that every renderer draws.

    Sections without rows and columns without figures are left out.

    Args:
        layer_columns: how many components get a column of their own in the table of the layers;
            None gives one to each.
    """
    # A source of sums has nothing but components.
    parts_of_a_token = (waterfall_section.waterfall(report),) if report.tokens else ()
    components = token_section.ledger if report.tokens else time_section.components
    sections = (
        listed("verdict", "", (waterfall_section.speed_and_distance(report),)),
        *parts_of_a_token,
        *changes(report.findings),
        roofline_section.kernels(report),
        run_section.recording(report),
        run_section.answers(report),
        time_section.steps(report),
        token_time_section.by_batch(report, most=16),
        components(report),
        token_section.batch_sizes(report),
        *speculation_section.sections(report),
        *context_section.sections(report),
        *prefill_section.sections(report),
        layer_section.layers(report, layer_columns),
        time_section.accounting(report),
        time_section.overhead(report),
        request_section.requests(report),
        client_section.agreement(report),
        client_section.runs(report.clients),
        replica_section.replicas(report),
        rank_section.ranks(report),
        rank_section.collectives(report),
        rank_section.slow_steps(report),
        rank_section.clocks(report),
        kernel_section.coverage(report),
        kernel_section.kernels(report),
        kernel_section.machine_code(report),
        kernel_section.copies(report),
        roofline_section.floors(report),
        roofline_section.streamed(report),
        counter_section.shapes(report),
        counter_section.kernels(report),
        counter_section.weights(report),
        conversion_section.attributed(report),
        conversion_section.others(report),
        kernel_section.modules(report),
        audit_section.layers(report.audit),
        *issue_section.known_issues(report.audit),
        run_section.notes(report),
    )
    title, headline = run_section.title(report), run_section.headline(report)
    caveats, verdict = run_section.caveats(report), verdict_of(report)
    return document(title, headline, sections, caveats, verdict)


def figures(report: Report) -> dict[str, Plot]:
    """The figures of a report by name, in the order in which it is read.

    A figure without anything to show is left out.
    """
    sections = (section.id for section in outline(report).sections)
    return _Figures((name, FIGURES[name](report)) for name in sections if name in FIGURES)


class _Figures(dict[str, Plot]):
    """Figures by name, whose error for another name lists those that there are."""

    def __missing__(self, name: str) -> Plot:
        raise KeyError(f"no figure {name!r}; there are {', '.join(self) or 'none'}")
