"""Draws what `spark-prof doctor` found, in every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from spark_prof.analyzers.ceilings.model import Ceilings
from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.analyzers.fallbacks.machine_checks import Machine
from spark_prof.analyzers.model import Finding
from spark_prof.dashboards import (
    about_audit,
    about_ceilings,
    about_machine,
    about_measured,
    about_run,
    json_report,
)
from spark_prof.dashboards.formats import clean, shorten
from spark_prof.dashboards.outline import without_empty_columns
from spark_prof.dashboards.section import Document, Section
from spark_prof.traces.measured import Measured


@dataclass(frozen=True)
class Diagnosis:
    """Everything that one run of the doctor found; None for what it was not asked.

    Attributes:
        subject: what was looked at, in words.
        findings: what is worth changing.
        audit: of a recording or log.
        machine: what is installed here.
        ceilings: of a model's folder.
        measured: what this machine was measured to reach.
    """

    subject: str
    findings: tuple[Finding, ...] = ()
    audit: Audit | None = None
    machine: Machine | None = None
    ceilings: Ceilings | None = None
    measured: Measured | None = None


def render_diagnosis(found: Diagnosis, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a diagnosis.

    Args:
        found: the diagnosis.
        kind: text, md, html or json.
        width: columns of the text.
        color: whether the text is coloured.
    """
    if kind == "json":
        return json_report.write(_json(found))
    drawn = document(found)
    if kind == "html":
        # Plotly takes most of a second to import, and only HTML needs it.
        from spark_prof.dashboards import html

        return html.draw(drawn, {})
    from spark_prof.dashboards import markdown, text

    return markdown.draw(drawn) if kind == "md" else text.draw(drawn, width, color)


def document(found: Diagnosis) -> Document:
    """The document that text, Markdown and HTML draw: what to change comes first."""
    sections = (about_run.list_of_findings(found.findings), *_sections(found))
    return Document(
        f"spark-prof doctor: {shorten(clean(found.subject), 200)}",
        _headline(found),
        tuple(without_empty_columns(section) for section in sections if section.rows),
    )


def _headline(found: Diagnosis) -> tuple[tuple[str, str], ...]:
    """No finding is good news only where something was looked at."""
    audit = found.audit
    if found.findings or (audit is None and found.machine is None):
        return ()
    told = audit is None or audit.rows or audit.log or audit.engine.vllm
    return (("to change was found" if told else "is known about kernels and settings", "Nothing"),)


def _sections(found: Diagnosis) -> Iterator[Section]:
    if found.audit is not None:
        yield about_audit.layers(found.audit)
        yield about_audit.engine(found.audit)
        yield about_audit.log(found.audit)
        yield about_audit.notes(found.audit)
    if found.machine is not None:
        yield about_machine.installed(found.machine)
        yield about_machine.libraries(found.machine)
        yield about_machine.notes(found.machine)
    if found.ceilings is not None:
        yield from about_ceilings.sections(found.ceilings)
    if found.measured is not None:
        yield about_measured.measured(found.measured)


def _json(found: Diagnosis) -> dict[str, Any]:
    return {
        "schema": json_report.SCHEMA,
        "subject": found.subject,
        "findings": [asdict(finding) for finding in found.findings],
        "audit": asdict(found.audit) if found.audit else None,
        "machine": asdict(found.machine) if found.machine else None,
        "ceilings": asdict(found.ceilings) if found.ceilings else None,
        "measured": asdict(found.measured) if found.measured else None,
    }
