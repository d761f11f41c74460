"""Sections about the run itself: what was recorded, what is worth changing, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.model import Finding, Report
from spark_prof.dashboards.formats import MISSING, clean, count, microseconds, share, shorten
from spark_prof.dashboards.section import Column, Section
from spark_prof.traces.bundle import IMPORTED

_LONGEST_FIELD = 400
_LONGEST_PROSE = 1000


def on_cpu(report: Report) -> bool:
    """Says whether the rows are a CPU engine's operators and not a GPU's kernels."""
    return report.run.units == "op"


def title(report: Report) -> str:
    """Names the report after its model."""
    return f"spark-prof: {shorten(clean(report.run.model) or 'unnamed model', 120)}"


def headline(report: Report) -> tuple[tuple[str, str], ...]:
    """Picks the few figures that a reader wants first; those that don't exist are left out."""
    steps = report.steps
    found: dict[str, str] = {}
    if steps.left_out:
        every = count(steps.count + steps.left_out)
        found[f"of {every} steps left out: a clock was set"] = count(steps.left_out)
    if steps.tpot_us and steps.tpot_us.median > 0:
        found["per output token"] = microseconds(steps.tpot_us.median)
        found["tokens/s a sequence"] = f"{1e6 / steps.tpot_us.median:,.1f}"
    if steps.decode_us and steps.decode_us.median > 0:
        found["a decode step"] = microseconds(steps.decode_us.median)
        if steps.tpot_us == steps.decode_us:
            del found["a decode step"]  # without speculation both are the same
        if ledger := report.decode_ledger:
            idle = ledger.idle_us / ledger.step_us
            found["of a decode step idle"] = share(idle)
    if report.conversions.us:
        found["of the time for format conversions"] = share(report.conversions.share)
    return tuple(found.items())


def caveats(report: Report) -> tuple[str, ...]:
    """Says what does not hold in this report, a sentence each; the figures of it are left out."""
    return tuple(f"Does not hold: {shorten(clean(text), _LONGEST_PROSE)}" for text in report.broken)


def recording(report: Report) -> Section:
    """Says what was recorded, on what and with what."""
    run, gpu = report.run, report.gpu
    name = gpu.name
    # AMD's own tools give names such as "Instinct MI300X".
    if gpu.vendor and not name.lower().startswith(gpu.vendor.lower()):
        name = f"{gpu.vendor} {name}" if name != "unknown" else f"{gpu.vendor}, model unknown"
    word = "architecture" if gpu.vendor == "AMD" else "compute capability"
    capability = f" ({word} {gpu.compute_capability})" if gpu.compute_capability else ""
    versions = ((name, version) for name, version in (("vLLM", run.vllm), ("torch", run.torch)))
    fields = (
        ("Model", run.model),
        ("CPU" if on_cpu(report) else "GPU", f"{name}{capability}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions if version)),
        ("Execution", run.execution),
        ("Command", run.command),
        ("Source", run.source),
        ("Recorded", ", ".join(part for part in (run.recorded_at, run.backend) if part)),
        ("State", "" if run.state == "complete" else run.state),
    )
    rows = ((name, shorten(clean(value), _LONGEST_FIELD)) for name, value in fields)
    intro: tuple[str, ...] = ()
    if on_cpu(report):
        traced = run.backend.startswith(IMPORTED)
        intro = (
            f"{'The trace has no device activity' if traced else 'This engine ran on a CPU'}: the "
            "rows below are CPU operators, not GPU kernels, and say nothing about how fast a GPU "
            "would be.",
        )
    elif run.execution.startswith("eager") and "CUDA graphs" not in run.execution:
        intro = (
            "Eager execution: without CUDA graphs the host's launches take part of each step. "
            "Read the kernels' times and shares here, not the time per token.",
        )
    return Section(
        "recording",
        "What was recorded",
        (Column(""), Column("", "prose")),
        tuple(row for row in rows if row[1]),
        intro,
    )


def findings(report: Report) -> Section:
    """Lists what is worth changing, with what it would bring."""
    return list_of_findings(report.findings)


def list_of_findings(all_found: Sequence[Finding]) -> Section:
    """The same of findings that belong to no report."""
    rows = tuple(
        (
            MISSING if found.ms_per_token is None else microseconds(1000 * found.ms_per_token),
            shorten(clean(found.text), _LONGEST_PROSE),
            shorten(clean(found.fix), _LONGEST_PROSE),
            clean(found.id),
        )
        for found in all_found
    )
    columns = (
        Column("Per token", "number"),
        Column("Finding", "prose"),
        Column("What to do", "prose"),
        Column("Id", optional=True),
    )
    return Section("findings", f"Findings ({count(len(rows))})", columns, rows)


def notes(report: Report) -> Section:
    """Lists what the recording lost and what to know before believing a figure."""
    rows = tuple((shorten(clean(note), _LONGEST_PROSE),) for note in report.notes if note.strip())
    return Section("notes", "Before believing these figures", (Column("", "prose"),), rows)
