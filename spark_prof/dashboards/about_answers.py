"""A section with the answers to what people ask first."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.formats import clean
from spark_prof.dashboards.section import Column, Section


def answers(report: Report) -> Section:
    """Lists the questions that this run can answer."""
    rows = tuple(
        (clean(found.question), clean(found.text), clean(found.evidence))
        for found in report.answers
    )
    columns = (
        Column("Question", "prose"),
        Column("Answer", "prose"),
        Column("Stands on", "prose", optional=True),
    )
    return Section("answers", "Why is it slow? Five questions", columns, rows)
