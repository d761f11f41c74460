"""What `spark-prof doctor --known-issues` prints: the dated table."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.fallbacks.audit_rows import KnownIssue
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.json_report import SCHEMA
from spark_prof.dashboards.section import document
from spark_prof.dashboards.sections.issue_section import every_issue, issue_list


def render_known_issues(rows: Sequence[KnownIssue], layout: Layout) -> str:
    """Draws the table in a format."""
    # A terminal has no room for eight columns of sentences.
    sections = issue_list if layout.kind == "text" else every_issue
    record = {"schema": SCHEMA, "known_issues": rows}
    return draw(
        lambda: document("Known issues of vLLM", (), sections(rows)), lambda: record, layout
    )
