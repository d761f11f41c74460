"""What `spark-prof doctor` found: of a recording or log, of a model's folder, of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_prof.analyzers.ceilings.ceiling_rows import CheckpointCeilings
from spark_prof.analyzers.fallbacks.audit_rows import Audit, KnownIssue
from spark_prof.analyzers.fallbacks.machine_checks import Machine
from spark_prof.analyzers.fallbacks.verdict import (
    DoctorVerdict,
    verdicts_of_audit,
    verdicts_of_machine,
)
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.startup.start_rows import StartMemory, Startup
from spark_prof.dashboards import cells
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.json_report import SCHEMA
from spark_prof.dashboards.render.terminal import first_rows, fitting
from spark_prof.dashboards.section import Cell, Document, Section, document, listed, pairs, table
from spark_prof.dashboards.sections import (
    audit_section,
    ceiling_section,
    run_section,
    startup_section,
)
from spark_prof.dashboards.sections.audit_section import every_issue, issue_list
from spark_prof.dashboards.short_report import abridged
from spark_prof.dashboards.units import MISSING, bandwidth, count, microseconds, operations, shorten
from spark_prof.dashboards.verdict_sentence import verdict_sentence
from spark_prof.traces.measured import MeasuredMachine

_ROWS = (12, 9, 7, 6, 5, 4, 3, 2, 1)
_LONGEST_FINDING, _LONGEST_FIX, _LONGEST_CELL = 240, 160, 180
_DETAILS = ("log", "unknown-lines", "startup", "memory", "libraries", "ceilings_left_out")
"""Sections that only `--all` has."""
_PROSE = ("known-issues", "startup-slow")
"""Lists whose sentences say at their end what to do: each is shown whole."""
_WHOLE = ("step_bytes",)
"""Tables that end with a sum: they are shown whole."""


def short_diagnosis(whole: Document, findings: Sequence[Finding], width: int) -> Document:
    """The fullest document of a diagnosis that fits on one screen.

    Args:
        whole: the document with everything.
        width: columns of the page.
    """
    return fitting(
        (
            document(
                whole.title,
                (),
                _first_rows_of(findings, whole.sections, rows),
                whole.caveats,
                whole.verdict,
            )
            for rows in _ROWS
        ),
        width,
    )


def _first_rows_of(
    findings: Sequence[Finding], sections: Sequence[Section], rows: int
) -> Iterator[Section]:
    texts = [f"{number}. {_in_short(finding)}" for number, finding in enumerate(findings, start=1)]
    title = f"Findings ({count(len(texts))})"
    yield first_rows(listed("findings", title, texts), max(rows // 2, 1), "findings")
    left_out = []
    for section in sections:
        if section.id == "findings":
            continue
        if section.id in _DETAILS:
            left_out.append(section.title)
            continue
        short = section
        if section.id not in _PROSE:
            short = replace(section, rows=tuple(tuple(map(_cell, row)) for row in section.rows))
        yield short if section.id in _WHOLE else first_rows(short, rows)
    if left_out:
        yield listed("more", "", [f"{', '.join(left_out)}: --all."])


def _in_short(finding: Finding) -> str:
    return (
        f"{abridged(finding.text, _LONGEST_FINDING)} {abridged(finding.fix, _LONGEST_FIX)}".strip()
    )


def _cell(cell: Cell) -> Cell:
    """A text that is a sentence, in short; figures and names as they are."""
    return abridged(cell, _LONGEST_CELL) if type(cell) is str else cell


_LONGEST = 300
_NOT_IN_JSON = ("one_gpu",)
_QUANTITIES = {
    "read": "memory, read",
    "write": "memory, written",
    "copy": "memory, copied",
    "launch_eager": "empty kernel, launched alone",
    "launch_graph": "empty kernel in a CUDA graph",
    "node_serial": "node of a CUDA graph, one block",
    "node_serial_wide": "node, a block on each SM",
    "node_serial_reads": "node that reads the last one's result",
    "node_dependent": "node that starts early, one block",
    "node_dependent_wide": "node that starts early, a block on each SM",
    "node_dependent_reads": "node that starts early and reads",
}


@dataclass(frozen=True)
class Diagnosis:
    """Everything that one run of the doctor found; None for what it was not asked."""

    subject: str  # what was looked at, in words
    findings: tuple[Finding, ...] = ()
    audit: Audit | None = None  # of a recording or log
    machine: Machine | None = None  # what is installed here
    ceilings: CheckpointCeilings | None = None  # of a model's folder
    measured: MeasuredMachine | None = None  # what this machine was measured to reach
    one_gpu: bool = False  # whether somebody named the GPU that a model is for
    startup: Startup | None = None  # what the start took that a log tells of
    memory: StartMemory | None = None  # and what takes the GPU's memory after it


def render_diagnosis(diagnosis: Diagnosis, layout: Layout, *, whole: bool = False) -> str:
    """Draws a diagnosis in a format.

    Args:
        whole: every section; without it, and where none is asked for, text and Markdown have one
            screen.
    """

    def drawn() -> Document:
        everything = document_of(diagnosis)
        if layout.kind == "html" or whole or layout.bounds.sections:
            return everything
        return short_diagnosis(everything, diagnosis.findings, layout.width)

    return draw(drawn, lambda: _record(diagnosis), layout)


def _record(diagnosis: Diagnosis) -> dict[str, Any]:
    """What JSON has: the verdict with its sentence, and what else is the matter below `also`."""
    record = {name: value for name, value in vars(diagnosis).items() if name not in _NOT_IN_JSON}
    verdicts = verdicts_of(diagnosis)
    record["known_issues"] = diagnosis.audit.known_issues if diagnosis.audit else ()
    if not verdicts:
        return {"schema": SCHEMA, **record}
    verdict = {**vars(verdicts[0]), "text": verdict_sentence(verdicts), "also": verdicts[1:]}
    return {"schema": SCHEMA, "verdict": verdict, **record}


def verdicts_of(diagnosis: Diagnosis) -> tuple[DoctorVerdict, ...]:
    """What is the matter, the worst first; none where only a model was asked about."""
    if diagnosis.audit is not None:
        return verdicts_of_audit(diagnosis.audit, diagnosis.findings)
    if diagnosis.machine is not None:
        return verdicts_of_machine(diagnosis.machine, diagnosis.findings)
    return ()


def document_of(diagnosis: Diagnosis) -> Document:
    """The document that text, Markdown and HTML draw: the verdict, then what to change."""
    title = f"spark-prof doctor: {shorten(diagnosis.subject, 200)}"
    verdict = verdict_sentence(verdicts_of(diagnosis))
    if not verdict and diagnosis.ceilings is not None:
        verdict = ceiling_section.at_most(diagnosis.ceilings)
    return document(title, (), _sections(diagnosis), verdict=verdict)


def _sections(diagnosis: Diagnosis) -> Iterator[Section]:
    yield run_section.findings(diagnosis.findings)
    yield from audit_section.known_issues(diagnosis.audit)
    if diagnosis.audit is not None:
        yield from _of_audit(diagnosis.audit)
    yield from startup_section.sections(diagnosis.startup, diagnosis.memory)
    if diagnosis.machine is not None:
        yield _installed(diagnosis.machine)
        yield _libraries(diagnosis.machine)
        yield listed(
            "machine-notes", "What could not be looked at", diagnosis.machine.lost, _LONGEST
        )
    if diagnosis.ceilings is not None:
        yield from ceiling_section.sections(diagnosis.ceilings, diagnosis.one_gpu)
    if diagnosis.measured is not None:
        yield measured(diagnosis.measured)


def _of_audit(audit: Audit) -> Iterator[Section]:
    yield audit_section.layers(audit)
    yield audit_section.unknown(audit)
    yield audit_section.engine(audit)
    yield audit_section.log(audit)
    yield audit_section.notes(audit)


def _installed(machine: Machine) -> Section:
    """Lists GPU, driver, packages and tools; what is missing has a dash."""
    gpu = f"{machine.gpu} (compute capability {machine.capability})" if machine.gpu else ""
    fields = [
        ("GPU", gpu),
        ("Driver", machine.driver),
        *((package.name, package.version) for package in machine.packages),
        ("nvcc", " ".join(filter(None, (machine.nvcc, machine.cuda)))),
        ("libcupti", machine.cupti),
    ]
    rows = [(name, value or MISSING) for name, value in fields]
    return pairs("installed", "What is installed here", rows, _LONGEST)


def _libraries(machine: Machine) -> Section:
    """Lists libraries with GPU code and their architectures."""
    columns = (
        cells.Name("Library", "path"),
        cells.Prose("Machine code", lambda one: ", ".join(one.architectures), missing=MISSING),
        cells.Text("PTX", lambda one: ", ".join(one.ptx), missing=MISSING),
    )
    intro = (
        "An f or a marks code with the features of a family or of one architecture, such as FP4 "
        "products; of architectures of another generation than this GPU's an f does not show.",
    )
    title = "What the libraries were built for"
    return table("libraries", title, machine.libraries, columns, intro)


def measured(ceilings: MeasuredMachine) -> Section:
    """Lists the measured ceilings, and how the device stood before and after."""
    columns = (
        cells.Text(
            "Ceiling", lambda e: _QUANTITIES.get(e.quantity, f"{e.quantity} matrix product")
        ),
        cells.Formatted("Median", lambda entry: _amount(entry.value, entry.unit)),
        cells.Formatted(
            "Range", lambda e: f"{_amount(e.lowest, e.unit)} to {_amount(e.highest, e.unit)}"
        ),
        cells.Count("Repeats", "repeats", optional=True),
        cells.Prose("How", "how"),
    )
    about = f"{ceilings.device}, measured {ceilings.taken} with torch {ceilings.torch}."
    states = [
        f"{when}: {state.words}."
        for when, state in (("Before", ceilings.before), ("After", ceilings.after))
        if state.words
    ]
    intro = (about, *states, *ceilings.notes)
    return table("measured", "Measured ceilings", ceilings.measurements, columns, intro)


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return microseconds(value * 1e6)
    return bandwidth(value) if unit == "B/s" else operations(value, unit)


def render_known_issues(rows: Sequence[KnownIssue], layout: Layout) -> str:
    """Draws the table in a format."""
    # A terminal has no room for eight columns of sentences.
    sections = issue_list if layout.kind == "text" else every_issue
    record = {"schema": SCHEMA, "known_issues": rows}
    return draw(
        lambda: document("Known issues of vLLM", (), sections(rows)), lambda: record, layout
    )
