"""Known issues: those that a run has for certain, and the whole table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_prof.analyzers.fallbacks.audit_rows import Audit, KnownIssue
from spark_prof.analyzers.finding import commented
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, commands, listed, table
from spark_prof.dashboards.units import shorten

_LONGEST = 1200
_MOST_SHORT, _LONGEST_SHORT = 2, 150


def known_issues(audit: Audit | None) -> tuple[Section, ...]:
    """What is known of this version on this GPU, and what proves on this machine what helps."""
    issues = audit.known_issues if audit else ()
    title = "Known issues of this version"
    typed = (commented(row.command, row.issue) for row in issues if row.command)
    return (
        listed("known-issues", title, map(_issue_text, issues), _LONGEST),
        commands("known-issues-ab", "What proves it on this machine", typed),
    )


def short_known_issues(audit: Audit | None) -> Section:
    """The same on a line each; their section tells more."""
    issues = audit.known_issues if audit else ()
    lines = [
        shorten(f"In the window of {row.issue}: {row.what}", _LONGEST_SHORT)
        for row in issues[:_MOST_SHORT]
    ]
    if lines:
        more = len(issues) - len(lines)
        rest = f"{more} more, and what to try" if more else "What to try"
        lines.append(f"{rest}: --section known-issues")
    return listed("known-issues", "Known issues of this version", lines)


def window(row: KnownIssue) -> str:
    """The versions that have an issue, in words."""
    span = row.since if row.since == row.last else f"{row.since} to {row.last}"
    return f"{span}, fixed in {row.fixed}" if row.fixed else f"{span}, open"


def attempt(row: KnownIssue) -> str:
    """What to try."""
    return "; ".join(filter(None, (row.side, row.remedy)))


def _issue_text(row: KnownIssue) -> str:
    gpus = f"; {row.gpus}" if row.gpus else ""
    return (
        f"You are in the window of {row.issue} ({row.date}; vLLM {window(row)}{gpus}): {row.what}. "
        f"Expect, as reported there: {row.effect}. Try: {attempt(row)}. "
        f"Shown by: {'; '.join(row.evidence)}."
    )


def every_issue(rows: Sequence[KnownIssue]) -> Iterable[Section]:
    """The table, with a list of the addresses below it."""
    columns = (
        cells.Text("Issue", "issue"),
        cells.Text("Reported", "date"),
        cells.Text("Harms", "kind"),
        cells.Text("vLLM", window),
        cells.Text("GPUs", lambda row: row.gpus or "any"),
        cells.Prose("What is the case", "what"),
        cells.Prose("As reported", "effect"),
        cells.Prose("Try", attempt),
    )
    yield table("known-issues", f"Known issues ({len(rows)})", rows, columns, (_as_of(rows),))
    addresses = (f"{row.issue}: {', '.join(row.reported)}" for row in rows)
    yield listed("known-issues-reported", "Where they were reported", addresses)


def issue_list(rows: Sequence[KnownIssue]) -> Iterable[Section]:
    """The same as a list, a paragraph an issue, for a page of any width."""
    texts = (
        f"{number}. {row.issue} ({row.date}, {row.kind}; vLLM {window(row)}; "
        f"{row.gpus or 'any GPU'}): {row.what}. As reported: {row.effect}. Try: {attempt(row)}. "
        f"{', '.join(row.reported)}"
        for number, row in enumerate(rows, 1)
    )
    section = listed("known-issues", f"Known issues ({len(rows)})", texts, _LONGEST)
    yield replace(section, intro=(_as_of(rows),))


def _as_of(rows: Sequence[KnownIssue]) -> str:
    checked = max((row.as_of for row in rows), default="")
    return (
        f"As of {checked}. Of versions beyond the last that is named nothing is known; figures "
        "are those of the reports, on their machines."
    )
