"""The run itself: what was recorded, what is worth changing, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, listed, pairs, table
from spark_prof.dashboards.units import count, counted, microseconds, share, shorten
from spark_prof.traces.bundle import IMPORTED

_USUAL = ("model runner V1", "model runner V2", "asynchronous scheduling")
_LONGEST_FIELD = 400
_LONGEST_PROSE = 1000


def on_cpu(report: Report) -> bool:
    """Says whether the rows are a CPU engine's operators and not a GPU's kernels."""
    return report.run.units == "op"


def title(report: Report) -> str:
    """Names the report after its model."""
    return f"spark-prof: {shorten(report.run.model, 120) or 'unnamed model'}"


def headline(report: Report) -> tuple[tuple[str, str], ...]:
    """Picks the few figures that a reader wants first; those that don't exist are left out."""
    steps = report.steps
    found: dict[str, str] = {}
    if clock := left_out(report):
        number, _, words = clock.partition(" ")
        found[words] = number
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
    return tuple(f"Does not hold: {shorten(text, _LONGEST_PROSE)}" for text in report.broken)


def gpu_name(report: Report) -> str:
    """The GPU with its maker and architecture; the processor of a CPU engine."""
    gpu, name = report.gpu, report.gpu.name
    # AMD's own tools give names such as "Instinct MI300X".
    if gpu.vendor and not name.lower().startswith(gpu.vendor.lower()):
        name = f"{gpu.vendor} {name}" if name != "unknown" else f"{gpu.vendor}, model unknown"
    word = "architecture" if gpu.vendor == "AMD" else "compute capability"
    return f"{name} ({word} {gpu.compute_capability})" if gpu.compute_capability else name


def in_a_line(report: Report, *, brief: bool = False) -> str:
    """Names what was recorded beside the model: on what, with which versions, which steps, how.

    In brief that leaves out torch's version, and what every vLLM of these years has.
    """
    run, steps = report.run, report.steps
    versions = (("vLLM", run.vllm), ("torch", "" if brief else run.torch))
    execution = run.execution
    if brief:
        parts = execution.replace(" (VLLM_COMPILE)", "").split(", ")
        execution = ", ".join(part for part in parts if part not in _USUAL)
    kinds = (("decode", steps.decode), ("prefill", steps.prefill), ("mixed", steps.mixed))
    told = (
        gpu_name(report),
        *(f"{name} {version}" for name, version in versions if version),
        *(counted(number, f"{kind} step") for kind, number in kinds if number),
        execution,
    )
    return ", ".join(filter(None, told))


def left_out(report: Report) -> str:
    """How many steps count nowhere, and why; empty where all count."""
    steps = report.steps
    if not steps.left_out:
        return ""
    every = count(steps.count + steps.left_out)
    return f"{count(steps.left_out)} of {every} steps left out: a clock was set"


def recording(report: Report) -> Section:
    """Says what was recorded, on what and with what."""
    run = report.run
    versions = (("vLLM", run.vllm), ("torch", run.torch))
    fields = (
        ("Model", run.model),
        ("CPU" if on_cpu(report) else "GPU", gpu_name(report)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions if version)),
        ("Execution", run.execution),
        ("Command", run.command),
        ("Source", run.source),
        ("Recorded", ", ".join(part for part in (run.recorded_at, run.backend) if part)),
        ("State", "" if run.state == "complete" else run.state),
    )
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
    return pairs("recording", "What was recorded", fields, _LONGEST_FIELD, intro)


def answers(report: Report) -> Section:
    """Lists the questions that this run can answer."""
    columns = (
        cells.Prose("Question", "question"),
        cells.Prose("Answer", "text"),
        cells.Prose("Evidence", "evidence", optional=True),
    )
    return table("answers", "Why is it slow? Five questions", report.answers, columns)


def findings(found: Sequence[Finding]) -> Section:
    """Lists what is worth changing, with what it would bring."""
    columns = (
        cells.Time("Per token", lambda one: one.ms_per_token and 1000 * one.ms_per_token),
        cells.Prose("Finding", "text", longest=_LONGEST_PROSE),
        cells.Prose("What to do", "fix", longest=_LONGEST_PROSE),
        cells.Text("Id", "key", optional=True),
    )
    return table("findings", f"Findings ({count(len(found))})", found, columns)


def notes(report: Report) -> Section:
    """Lists what the recording lost and what to know before believing a figure."""
    return listed("notes", "Caveats", report.notes)
