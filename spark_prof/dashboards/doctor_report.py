"""What `spark-prof doctor` found: of a recording or log, of a model's folder, of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_prof.analyzers.ceilings.ceiling_rows import Ceilings
from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.analyzers.fallbacks.machine_checks import Machine
from spark_prof.analyzers.finding import Finding
from spark_prof.dashboards import cells
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.json_report import SCHEMA
from spark_prof.dashboards.section import Document, Section, document, listed, pairs, table
from spark_prof.dashboards.sections import audit_section, ceiling_section, run_section
from spark_prof.dashboards.units import MISSING, bandwidth, microseconds, operations, shorten
from spark_prof.traces.measured import Measured

_LONGEST = 300
_QUANTITIES = {
    "read": "memory, read",
    "write": "memory, written",
    "copy": "memory, copied",
    "launch_eager": "empty kernel, launched alone",
    "launch_graph": "empty kernel in a CUDA graph",
}


@dataclass(frozen=True)
class Diagnosis:
    """Everything that one run of the doctor found; None for what it was not asked."""

    subject: str  # what was looked at, in words
    findings: tuple[Finding, ...] = ()
    audit: Audit | None = None  # of a recording or log
    machine: Machine | None = None  # what is installed here
    ceilings: Ceilings | None = None  # of a model's folder
    measured: Measured | None = None  # what this machine was measured to reach
    one_gpu: bool = False  # whether somebody named the GPU that a model is for


def render_diagnosis(found: Diagnosis, layout: Layout) -> str:
    """Draws a diagnosis in a format."""
    told = {name: value for name, value in vars(found).items() if name != "one_gpu"}
    record = {"schema": SCHEMA, **told}
    return draw(lambda: document_of(found), lambda: record, layout)


def document_of(found: Diagnosis) -> Document:
    """The document that text, Markdown and HTML draw: what to change comes first."""
    title = f"spark-prof doctor: {shorten(found.subject, 200)}"
    return document(title, _headline(found), _sections(found))


def _headline(found: Diagnosis) -> tuple[tuple[str, str], ...]:
    """No finding is good news only where something was looked at."""
    audit, machine = found.audit, found.machine
    if found.findings or (audit is None and machine is None):
        return ()
    if audit is not None:
        if not (audit.rows or audit.log or audit.engine.vllm):
            return (("is known about kernels and settings", "Nothing"),)
        if not (audit.engine.gpu or audit.engine.capability):
            asked = "whether a faster kernel exists was not looked at; give --gpu, such as "
            return ((f"{asked}--gpu gb10", "The GPU is not known:"),)
    elif machine is not None and not machine.gpu:
        asked = (
            "its software was not looked at; for another machine: spark-prof doctor its-vllm.log "
            "--gpu gb10, or spark-prof why its-model --gpu gb10"
        )
        return ((asked, "No NVIDIA GPU here:"),)
    elif machine is not None and not machine.version("vllm"):
        asked = "nothing was looked at; run this in the environment that serves"
        return ((asked, "No vLLM here:"),)
    return (("to change was found", "Nothing"),)


def _sections(found: Diagnosis) -> Iterator[Section]:
    yield run_section.findings(found.findings)
    if found.audit is not None:
        yield audit_section.layers(found.audit)
        yield audit_section.engine(found.audit)
        yield audit_section.log(found.audit)
        yield audit_section.notes(found.audit)
    if found.machine is not None:
        yield _installed(found.machine)
        yield _libraries(found.machine)
        yield listed("machine-notes", "What could not be looked at", found.machine.lost, _LONGEST)
    if found.ceilings is not None:
        yield from ceiling_section.sections(found.ceilings, found.one_gpu)
    if found.measured is not None:
        yield measured(found.measured)


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
    shown = [(name, value or MISSING) for name, value in fields]
    return pairs("installed", "What is installed here", shown, _LONGEST)


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


def measured(found: Measured) -> Section:
    """Lists the measured ceilings, and how the device stood before and after."""
    columns = (
        cells.Text(
            "Ceiling", lambda e: _QUANTITIES.get(e.quantity, f"{e.quantity} matrix product")
        ),
        cells.Written("Median", lambda entry: _amount(entry.value, entry.unit)),
        cells.Written(
            "Range", lambda e: f"{_amount(e.lowest, e.unit)} to {_amount(e.highest, e.unit)}"
        ),
        cells.Count("Repeats", "repeats", optional=True),
        cells.Prose("How", "how"),
    )
    about = f"{found.device}, measured {found.taken} with torch {found.torch}."
    states = [
        f"{when}: {state.words}."
        for when, state in (("Before", found.before), ("After", found.after))
        if state.words
    ]
    intro = (about, *states, *found.notes)
    return table("measured", "Measured ceilings", found.measurements, columns, intro)


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return microseconds(value * 1e6)
    return bandwidth(value) if unit == "B/s" else operations(value, unit)
