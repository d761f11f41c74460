"""The order in which a report is read: from what was recorded to what to do about it."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.dashboards import (
    about_answers,
    about_audit,
    about_clients,
    about_conversions,
    about_counters,
    about_kernels,
    about_layers,
    about_machine_code,
    about_ranks,
    about_roofline,
    about_run,
    about_shapes,
    about_time,
    about_tokens,
    about_waterfall,
)
from spark_prof.dashboards.formats import MISSING
from spark_prof.dashboards.section import Document, Section


def outline(report: Report, *, layer_columns: int | None = None) -> Document:
    """Turns a report into the document that every renderer draws.

    `layer_columns` is how many components get a column of their own in the table of the layers;
    None gives one to each. Sections without rows and columns without figures are left out.
    """
    # A source of sums has nothing but components.
    parts_of_a_token = (about_waterfall.waterfall(report),) if report.tokens else ()
    sections = (
        about_run.recording(report),
        about_answers.answers(report),
        about_run.findings(report),
        *parts_of_a_token,
        about_time.steps(report),
        about_tokens.ledger(report) if report.tokens else about_time.components(report),
        about_tokens.batch_sizes(report),
        about_layers.layers(report, layer_columns),
        about_time.accounting(report),
        about_time.overhead(report),
        about_clients.agreement(report),
        about_clients.runs(report.clients),
        about_ranks.ranks(report),
        about_ranks.collectives(report),
        about_ranks.slow_steps(report),
        about_ranks.clocks(report),
        about_kernels.coverage(report),
        about_kernels.kernels(report),
        about_machine_code.machine_code(report),
        about_kernels.copies(report),
        about_roofline.floors(report),
        about_roofline.kernels(report),
        about_roofline.streamed(report),
        about_shapes.shapes(report),
        about_counters.kernels(report),
        about_counters.weights(report),
        about_conversions.charged(report),
        about_conversions.others(report),
        about_kernels.modules(report),
        about_audit.layers(report.audit),
        about_run.notes(report),
    )
    return Document(
        about_run.title(report),
        about_run.headline(report),
        tuple(without_empty_columns(section) for section in sections if section.rows),
        about_run.caveats(report),
    )


def without_empty_columns(section: Section) -> Section:
    """Leaves out every column in which no row says anything."""
    return section.only(
        [
            index
            for index in range(len(section.columns))
            if any(row[index] not in ("", MISSING, 0.0) for row in section.rows)
        ]
    )
