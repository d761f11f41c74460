"""The run itself: what was recorded, what is worth changing, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.graph_use import GraphUse
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, listed, pairs, table
from spark_prof.dashboards.units import count, counted, microseconds, share, shorten

_LONGEST_FIELD = 400
_SEVERAL = 2
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
    figures: dict[str, str] = {}
    if report.steps.left_out:
        figures[_clock_set(report)] = count(report.steps.left_out)
    if (headline := steps.headline_and_screen) and headline.time.token_us > 0:
        size = "" if headline.time.batch is None else f" at batch {count(headline.time.batch)}"
        figures[f"per output token{size}"] = microseconds(headline.time.token_us)
        figures["tokens/s a sequence"] = f"{headline.time.tokens_per_s_sequence:,.1f}"
        if headline.time.requests > 1:
            figures["tokens/s together"] = f"{headline.time.tokens_per_s:,.1f}"
    if steps.decode_us and steps.decode_us.median > 0:
        if steps.token and steps.token.steps_per_token != 1:  # with speculation
            figures["a decode step"] = microseconds(steps.decode_us.median)
        if step := report.decode_step:
            idle = step.idle_us / step.step_us
            figures["of a decode step idle"] = share(idle)
    if report.conversions.us:
        figures["of the time for format conversions"] = share(report.conversions.share)
    return tuple(figures.items())


def caveats(report: Report) -> tuple[str, ...]:
    """Says what does not hold in this report, a sentence each; the figures of it are left out."""
    return tuple(f"Does not hold: {shorten(text, _LONGEST_PROSE)}" for text in report.broken)


def gpu_name(report: Report) -> str:
    """The GPU with its maker and architecture; the processor of a CPU engine."""
    gpu, name = report.gpu, report.gpu.name
    # AMD's own tools give names such as "Instinct MI300X".
    if gpu.vendor and not name.lower().startswith(gpu.vendor.lower()):
        name = f"{gpu.vendor} {name}" if name != "unknown" else f"{gpu.vendor}, model unknown"
    if name == "unknown":
        name = "GPU unknown"
    word = "architecture" if gpu.vendor == "AMD" else "compute capability"
    return f"{name} ({word} {gpu.compute_capability})" if gpu.compute_capability else name


def in_a_line(report: Report, *, brief: bool = False) -> str:
    """Names what was recorded beside the model: on what, with which versions, which steps, how.

    In brief that leaves out torch's version, and what every vLLM of these years has.
    """
    run, steps = report.run, report.steps
    versions = (("vLLM", run.vllm), ("torch", "" if brief else run.torch))
    execution = run.mode.brief if brief else run.execution
    kinds = (("decode", steps.decode), ("prefill", steps.prefill), ("mixed", steps.mixed))
    parts = (
        gpu_name(report),
        *(f"{name} {version}" for name, version in versions if version),
        *(counted(number, f"{kind} step") for kind, number in kinds if number),
        "" if execution == "unknown" else execution,
    )
    return ", ".join(filter(None, parts))


def graphs_told(report: Report) -> str:
    """Which CUDA graphs the steps ran; empty where a recording does not tell them apart."""
    return "; ".join(_graphs(row) for row in report.graphs if row.kind or row.eager_breaks)


def _graphs(row: GraphUse) -> str:
    text = f"{row.mode.lower()} ({row.kind})" if row.kind else row.mode.lower()
    if row.eager_breaks is not None:
        breaks = counted(round(row.eager_breaks), "eager break")
        text += f", {counted(row.pieces, 'piece')}, {breaks} a step"
    elif row.launches > 1:
        text += f", {row.launches:.3g} launches a step"
    return f"{text}, in {counted(row.steps, 'step')}"


def parallel_run(report: Report) -> str:
    """Of which parallel run this is a rank, and which ranks are missing; empty for a single GPU."""
    parallel = report.parallel
    if parallel is None or parallel.world < _SEVERAL:
        return ""
    clauses = [
        f"{', '.join(parallel.sizes)}: " if parallel.sizes else "",
        f"rank {parallel.rank} of {parallel.world}",
    ]
    other_ranks = [rank for rank in parallel.ranks if rank != parallel.rank]
    if other_ranks:
        clauses.append(
            f", {ranks_named(other_ranks)} {'is' if not other_ranks[1:] else 'are'} here too "
            "(--rank)"
        )
    if parallel.missing:
        one = not parallel.missing[1:]
        clauses.append(f"; {ranks_named(parallel.missing)} {'is' if one else 'are'} not here")
    if (parallel.data or 1) > 1:
        clauses.append("; steps and tokens are those of its replica")
    text = "".join(clauses)
    return text[:1].upper() + text[1:]


def ranks_named(ranks: Sequence[int]) -> str:
    """Ranks in words, such as `ranks 0, 2 to 7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]} to {run[-1]}" if run[2:] else " and ".join(map(str, run)) for run in runs]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(texts)}"


def left_out(report: Report) -> str:
    """How many steps count nowhere, and why; empty where all count."""
    out = report.steps.left_out
    return f"{count(out)} {_clock_set(report)}" if out else ""


def _clock_set(report: Report) -> str:
    every = count(report.steps.count + report.steps.left_out)
    return f"of {every} steps left out: a clock was set"


def swapped(report: Report) -> str:
    """Which kernels ran in place of vLLM's; empty where its own did.

    "Swapped by spark-prof: moe=spark_prof, qkv=mxfp4"
    """
    named = swapped_words(report)
    return f"Swapped by spark-prof: {', '.join(named)}" if named else ""


def swapped_words(report: Report) -> list[str]:
    """The swaps, a word each; only the slot where the recording does not name the kernel."""
    return [swap.slot + (f"={swap.kernel}" if swap.kernel else "") for swap in report.run.swaps]


def recording(report: Report) -> Section:
    """Says what was recorded, on what and with what."""
    run = report.run
    versions = (("vLLM", run.vllm), ("torch", run.torch))
    fields = (
        ("Model", run.model),
        ("CPU" if on_cpu(report) else "GPU", gpu_name(report)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions if version)),
        ("Execution", run.execution),
        ("CUDA graphs", graphs_told(report)),
        ("Ranks", parallel_run(report)),
        ("Swapped", swapped(report).partition(": ")[2]),
        ("Command", run.command),
        ("Source", run.source),
        ("Recorded", ", ".join(part for part in (run.recorded_at, run.backend) if part)),
        ("State", "" if run.state == "complete" else run.state),
    )
    intro: tuple[str, ...] = ()
    if on_cpu(report):
        traced = run.imported
        intro = (
            f"{'The trace has no device activity' if traced else 'This engine ran on a CPU'}: the "
            "rows are CPU operators, not GPU kernels, and say nothing about how fast a GPU would "
            "be.",
        )
    elif run.mode.launches_alone:
        intro = (
            "Eager execution: without CUDA graphs the host's launches take part of each step. "
            "Read the kernels' times and shares here, not the time per token."
            if run.tells_steps
            else "Eager execution: without CUDA graphs the host's launches take part of the time.",
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


def findings(findings: Sequence[Finding]) -> Section:
    """Lists what is worth changing, with what it would bring."""
    columns = (
        cells.Time("Per token", lambda one: one.ms_per_token and 1000 * one.ms_per_token),
        cells.Prose("Finding", "text", longest=_LONGEST_PROSE),
        cells.Prose("What to do", "fix", longest=_LONGEST_PROSE),
        cells.Text("Id", "key", optional=True),
    )
    return table("findings", f"Findings ({count(len(findings))})", findings, columns)


def notes(report: Report) -> Section:
    """Lists what the recording lost and what to know before believing a figure."""
    return listed("notes", "Caveats", report.notes)
