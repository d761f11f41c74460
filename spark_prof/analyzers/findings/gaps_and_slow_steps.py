"""Rules about time in which the GPU waits, and about steps that take longer than the others."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import (
    BETWEEN_KERNELS_US,
    Rule,
    kernels_per_decode_step,
    ms_per_token,
    rule,
    runs_asynchronously,
    runs_eagerly,
    runs_graphs,
)
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS

_MUCH_GAP = 0.05
_FEWEST_STEPS = 8
_FEW_STEPS = 16
_MUCH_UNEVEN = 0.05
_SLOW = 2.0
_MUCH_MIXED = 0.05


def _gap(report: Report, name: str, usual_us: float = 0.0) -> tuple[float, float] | None:
    """What such a gap takes in the typical decode step, in us, and as share of the step.

    None where it is small or stands on few steps. On a CPU engine nothing waits for a launch, and
    what an eager run waits for is another finding.
    """
    if report.run.units == "op" or runs_eagerly(report) or report.steps.decode < _FEWEST_STEPS:
        return None
    ledger = report.decode_ledger
    if ledger is None or not ledger.step_us:
        return None
    us = ledger.us(name) - usual_us
    return (us, us / ledger.step_us) if us >= _MUCH_GAP * ledger.step_us else None


def _evidence_of_gaps(report: Report) -> tuple[str, ...]:
    lines = ["The time of the median decode step in which no kernel and no copy ran."]
    if report.run.backend.startswith("imported: "):
        lines.append("What recorded the trace slows the host too: without it the gaps are smaller.")
    if report.overhead:
        ratio = report.overhead[0].ratio
        lines.append(f"Watching took {ratio:.3f} x the time of a step that was only timed.")
    return tuple(lines)


@rule("host-gaps", "timeline",
      "5 % of a decode step between its kernels beyond 1 us for each, unless the run "
      "is eager")  # fmt: skip
def _host_gaps(report: Report) -> Iterator[Finding]:
    found = _gap(report, LAUNCH_GAPS, BETWEEN_KERNELS_US * kernels_per_decode_step(report))
    if found is None:
        return
    us, share = found
    fix = (
        "Find what runs outside the graphs: full graphs for decode steps "
        '(--compilation-config \'{"cudagraph_mode": "FULL_AND_PIECEWISE"}\'), capture sizes that '
        "hold the batch sizes served (--cudagraph-capture-sizes), and an attention backend that "
        "can be captured."
        if runs_graphs(report)
        else "Let CUDA graphs replay the decode step: leave out --enforce-eager and any "
        'cudagraph_mode of NONE ("cudagraph_mode": "FULL_AND_PIECEWISE").'
    )
    yield Finding("host-gaps", ms_per_token(report, us * report.steps.decode),
        f"In a decode step the GPU waits {us:,.0f} us between its kernels for launches by the "
        f"host, {share:.1%} of the step.",
        fix,
        (
            *_evidence_of_gaps(report),
            f"Without the {BETWEEN_KERNELS_US:g} us that the GPU may need between two kernels of a "
            "graph: on an H100 the median was measured as 0.4 to 0.5 us.",
        ),
    )  # fmt: skip


@rule("scheduler-gaps", "timeline",
      "5 % of a decode step before its first or after its last kernel, unless the run"
      " is eager")  # fmt: skip
def _scheduler_gaps(report: Report) -> Iterator[Finding]:
    found = _gap(report, HOST)
    if found is None:
        return
    us, share = found
    fix = (
        "Scheduling runs beside the GPU already. Give the engine's process cores of its own, serve "
        "without logprobs, penalties and structured output where they are not needed, and stream "
        "less often (--stream-interval)."
        if runs_asynchronously(report)
        else "Let the scheduler work while the GPU does: --async-scheduling. vLLM turns it off by "
        "itself for some executors, pooling models and some kinds of speculative decoding; its log "
        "says which."
    )
    yield Finding("scheduler-gaps", ms_per_token(report, us * report.steps.decode),
        f"Before its first and after its last kernel a decode step waits {us:,.0f} us, "
        f"{share:.1%} of the step, for the scheduler and for what it sends and receives.",
        fix,
        _evidence_of_gaps(report),
    )  # fmt: skip


@rule("slow-steps", "steps",
      "decode steps whose mean is 5 % over the median and whose 99th percentile is "
      "twice that")  # fmt: skip
def _slow_steps(report: Report) -> Iterator[Finding]:
    found = report.steps.decode_us
    if found is None or report.steps.decode < _FEW_STEPS:
        return
    beyond = found.mean - found.median
    if beyond < _MUCH_UNEVEN * found.mean or found.p99 < _SLOW * found.median:
        return
    yield Finding("slow-steps", ms_per_token(report, beyond * report.steps.decode),
        "A few decode steps take far longer than the others: the median is "
        f"{found.median / 1e3:.2f} ms, the mean {found.mean / 1e3:.2f} ms, the 99th percentile "
        f"{found.p99 / 1e3:.2f} ms.",
        "Record again after a warm-up (--warmup-steps 32, or --steady): the first use of a kernel "
        "compiles it. If they stay, look at these steps in `spark-prof export`: garbage "
        "collection, another process on the GPU or on the engine's cores.",
        ("What the mean has beyond the median, over all decode steps.",),
    )  # fmt: skip


@rule("mixed-steps", "steps",
      "steps that read prompts as well lengthen the mean step of a decoding request "
      "by 5 %")  # fmt: skip
def _mixed_steps(report: Report) -> Iterator[Finding]:
    steps = report.steps
    if not steps.mixed or steps.mixed_us is None or steps.decode_us is None or not steps.decode:
        return
    longer = steps.mixed_us.mean - steps.decode_us.mean
    # Who decodes gets a token of either kind of step, and waits for the longer one as well.
    waits = longer * steps.mixed / (steps.mixed + steps.decode)
    if waits < _MUCH_MIXED * steps.decode_us.mean:
        return
    yield Finding("mixed-steps", ms_per_token(report, waits * steps.decode),
        f"{steps.mixed} of {steps.mixed + steps.decode} steps that decode also read prompts and "
        f"take {steps.mixed_us.mean / 1e3:.2f} ms instead of {steps.decode_us.mean / 1e3:.2f} ms: "
        "each token waits for them.",
        "Read prompts in smaller pieces (--max-num-batched-tokens, --long-prefill-token-threshold) "
        "if the time between tokens matters more than that to the first; prefix caching shortens "
        "prompts that begin alike.",
        ("Mean mixed step less the mean decode step, by their share of the steps.",),
    )  # fmt: skip


TIME: tuple[Rule, ...] = (
    _host_gaps,
    _scheduler_gaps,
    _slow_steps,
    _mixed_steps,
)
"""Rules about time in which nothing ran, or in which a step took longer than its kind."""
