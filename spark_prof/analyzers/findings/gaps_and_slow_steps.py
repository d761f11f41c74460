"""Rules about time in which the GPU waits, long steps, and work beside the matrix products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from spark_prof.analyzers.answers import written_time
from spark_prof.analyzers.findings.rule import (
    BETWEEN_KERNELS_US,
    PASSES,
    Observation,
    decode_steps_us,
    has_qk_norm,
    is_at_least,
    kernels_per_decode_step,
    ms_per_token,
    replays_full_graphs,
    rule,
    runs_asynchronously,
    runs_eagerly,
    runs_graphs,
)
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS
from spark_prof.analyzers.swapped_run import runs_already
from spark_prof.analyzers.views.waterfall import SMALL_US, waterfall_of
from spark_prof.rules import thresholds

_MUCH_GAP = thresholds.GAP_SHARE.value
_FEWEST_STEPS = thresholds.GAP_STEPS.value
_FEW_STEPS = thresholds.SLOW_STEPS.value
_MOSTLY_IDLE = thresholds.IDLE_SHARE.value
_MUCH_UNEVEN = thresholds.UNEVEN_SHARE.value
_SLOW = thresholds.SLOW_TIMES.value
_MUCH_MIXED = thresholds.MIXED_SHARE.value


def _gap(report: Report, name: str, usual_us: float = 0.0) -> tuple[float, float] | None:
    """What such a gap takes in the typical decode step, in us, and as share of the step.

    None where it is small or stands on few steps. On a CPU engine nothing waits for a launch, and
    what an eager run waits for is another finding.
    """
    typical, steps = report.decode_step, report.steps.decode
    if report.run.units == "op" or runs_eagerly(report) or steps < _FEWEST_STEPS or not typical:
        return None
    us = typical.us(name) - usual_us
    return (us, us / typical.step_us) if us >= _MUCH_GAP * typical.step_us > 0 else None


def _evidence_of_gaps(report: Report) -> tuple[str, ...]:
    lines = ["The time of the median decode step in which no kernel and no copy ran."]
    if report.run.imported:
        lines.append("What recorded the trace slows the host too: without it the gaps are smaller.")
    if report.overhead:
        ratio = report.overhead[0].ratio
        lines.append(f"Watching took {ratio:.3f} x the time of a step that was only timed.")
    return tuple(lines)


@rule("host-gaps", "timeline",
      "5 % of a decode step between its kernels beyond 1 us for each, unless the run "
      "is eager", ("launch_gaps",))  # fmt: skip
def _host_gaps(report: Report) -> Iterator[Observation]:
    gap = _gap(report, LAUNCH_GAPS, BETWEEN_KERNELS_US * kernels_per_decode_step(report))
    if gap is None:
        return
    us, share = gap
    fix = (
        f"Decode steps replay full CUDA graphs already ({report.run.mode.graph_mode}): the rest is "
        "launched outside of them or waits for the host. Look at the host's threads in Perfetto "
        "(ui.perfetto.dev); profiling adds some of it, which record --steady leaves out."
        if replays_full_graphs(report)
        else "Replay whole decode steps: cudagraph_mode FULL_AND_PIECEWISE, capture sizes that "
        "hold the batch sizes served (--cudagraph-capture-sizes), attention that can be captured."
        if runs_graphs(report)
        else "Let CUDA graphs replay the decode step: leave out --enforce-eager and any "
        'cudagraph_mode of NONE ("cudagraph_mode": "FULL_AND_PIECEWISE").'
    )
    yield Observation(ms_per_token(report, us * report.steps.decode),
        f"In a decode step the GPU waits {written_time(us)} between its kernels for launches by "
        f"the host, {100 * share:.1f} % of the step.",
        fix,
        (
            *_evidence_of_gaps(report),
            f"Without the {BETWEEN_KERNELS_US:g} us that the GPU may need between two kernels of a "
            "graph: on an H100 the median was measured as 0.4 to 0.5 us.",
        ),
    )  # fmt: skip


_ASYNC = "--async-scheduling"


@rule("scheduler-gaps", "timeline",
      "5 % of a decode step before its first or after its last kernel, unless the run"
      " is eager", ("host",))  # fmt: skip
def _scheduler_gaps(report: Report) -> Iterator[Observation]:
    gap = _gap(report, HOST)
    if gap is None:
        return
    us, share = gap
    fix = (
        "Give the engine's process cores of its own; leave out logprobs, penalties and structured "
        "output where nobody needs them; stream less often (--stream-interval)."
        if runs_asynchronously(report)
        else f"Let the scheduler work while the GPU does: {_ASYNC}. vLLM turns it off by "
        "itself for some executors, pooling models and some kinds of speculative decoding; its log "
        "says which."
    )
    yield Observation(ms_per_token(report, us * report.steps.decode),
        f"Before its first and after its last kernel a decode step waits {written_time(us)}, "
        f"{100 * share:.1f} % of it, for the scheduler and what it sends and receives.",
        fix,
        _evidence_of_gaps(report),
        tries=() if runs_asynchronously(report) else (_ASYNC,),
    )  # fmt: skip


@rule("idle-gpu", "timeline",
      "the GPU waits for more than half of the typical decode step, and neither a setting nor "
      "enough steps tell why", ("launch_gaps", "host"))  # fmt: skip
def _idle(report: Report) -> Iterator[Observation]:
    typical, steps = report.decode_step, report.steps.decode
    if report.run.units == "op" or typical is None or not typical.step_us:
        return
    eager = report.audit is not None and report.audit.engine.eager
    if eager or (steps >= _FEWEST_STEPS and not runs_eagerly(report)):
        return  # eager-mode, host-gaps and scheduler-gaps have it
    share = typical.idle_us / typical.step_us
    if share < _MOSTLY_IDLE:
        return
    few = f"; {steps} decode steps are few to judge by" if steps < _FEWEST_STEPS else ""
    fix = "Record more steps, after a warm-up: the first uses of graphs and kernels wait longer."
    if runs_eagerly(report):
        fix = "Leave out --enforce-eager: CUDA graphs launch a whole decode step at once."
    yield Observation(ms_per_token(report, typical.idle_us * steps),
        f"The GPU waits {written_time(typical.idle_us)} of a decode step of "
        f"{written_time(typical.step_us)}, {100 * share:.1f} %: no kernel can win as much "
        f"as the host's part{few}.",
        fix,
        _evidence_of_gaps(report),
    )  # fmt: skip


@rule("slow-steps", "steps",
      "decode steps whose mean is 5 % over the median and whose 99th percentile is "
      "twice that")  # fmt: skip
def _slow_steps(report: Report) -> Iterator[Observation]:
    times = report.steps.decode_us
    if times is None or report.steps.decode < _FEW_STEPS:
        return
    beyond, token = times.mean - times.median, report.steps.token
    if beyond < _MUCH_UNEVEN * times.mean or times.p99 < _SLOW * times.median:
        return
    per_token = ms_per_token(report, beyond * report.steps.decode)
    yield Observation(max(token.uneven_us, 0.0) / 1e3 if token else per_token,
        "A few decode steps take far longer than the others: the median is "
        f"{times.median / 1e3:.2f} ms, the mean {times.mean / 1e3:.2f} ms, the 99th percentile "
        f"{times.p99 / 1e3:.2f} ms.",
        "Look at these steps in Perfetto (ui.perfetto.dev): garbage collection, another process on "
        "the GPU or on the engine's cores. Steps that use a kernel for the first time and are fast "
        "from then on are not among them.",
        ("What a token's mean time has beyond that of the median step.",),
    )  # fmt: skip


@rule("mixed-steps", "steps",
      "steps that read prompts as well lengthen the mean step of a decoding request "
      "by 5 %")  # fmt: skip
def _mixed_steps(report: Report) -> Iterator[Observation]:
    steps, token = report.steps, report.steps.token
    if token is None or not token.mixed or not token.decode_only_us or steps.mixed_us is None:
        return
    # What a full KV cache makes them read again is another finding.
    waits = token.prompts_us * (1 - steps.recomputed_share)
    if waits < _MUCH_MIXED * token.decode_only_us or steps.decode_us is None:
        return
    yield Observation(waits / 1e3,
        f"{token.mixed} of {token.steps} steps that decode also read prompts and "
        f"take {steps.mixed_us.mean / 1e3:.2f} ms instead of {steps.decode_us.mean / 1e3:.2f} ms: "
        "each token waits for them.",
        "Read prompts in smaller pieces (--max-num-batched-tokens, --long-prefill-token-threshold) "
        "if the time between tokens matters more than that to the first; prefix caching shortens "
        "prompts that begin alike.",
        ("A token's time over all steps that decode, less that of those that only decode.",),
    )  # fmt: skip


@rule("preemptions", "steps", "requests that had to leave the KV cache, for it was full")
def _preemptions(report: Report) -> Iterator[Observation]:
    steps, token = report.steps, report.steps.token
    if not steps.preemptions:
        return
    again = (
        f"; {steps.recomputed_tokens:,} tokens were computed again"
        if steps.recomputed_tokens
        else ""
    )
    times = "time" if steps.preemptions == 1 else "times"
    again_us = max(token.prompts_us, 0.0) * steps.recomputed_share if token else 0.0
    yield Observation(again_us / 1e3 if token else None,
        f"The KV cache was full: a request was preempted {steps.preemptions:,} {times}{again}. "
        "Until it comes back it gets no token, which is in no step's time.",
        "Let fewer requests run at a time (--max-num-seqs), or give the KV cache more room: "
        "--gpu-memory-utilization, --kv-cache-dtype fp8, a shorter --max-model-len.",
        ("Preempted requests by the scheduler's own word. The gain is the share of recomputed "
         "tokens in what prompts add to a token's time.",),
    )  # fmt: skip


_MANY_SMALL = thresholds.SMALL_KERNELS.value
_MUCH_SMALL = thresholds.SMALL_SHARE.value
_MUCH_COPIED = thresholds.COPY_SHARE.value
_MUCH_SAMPLED = thresholds.SAMPLER_SHARE.value
_NAMED = 3

_FUSIONS_SINCE = (0, 24)
_MOE = "a MoE backend that routes, multiplies and sums in fewer kernels (--moe-backend)"
_ROPE = ("enable_qk_norm_rope_fusion",)
_REDUCE = ("fuse_allreduce_rms",)
_QUANTIZING = ("fuse_norm_quant", "fuse_act_quant")
_FUSIONS: Mapping[str, tuple[str, ...]] = {"norm": _ROPE, "rope": _ROPE, "collective": _REDUCE}
"""Passes that fuse the small kernels of a component, by the names of vLLM 0.24 to 0.33."""


@rule("small-kernels", "kernels",
      "50 kernels under 3 us that take 10 % of a decode step, with the time between "
      "them", ("small", "launch_gaps"))  # fmt: skip
def _small_kernels(report: Report) -> Iterator[Observation]:
    shapes, whole = report.shapes, decode_steps_us(report)
    if shapes is None or not whole or not report.steps.decode:
        return
    ahead = {(row.name, row.component): row.ahead_us for row in report.kernels}
    small = [
        row
        for row in shapes.rows
        if row.us_per_call + ahead.get((row.name, row.component), 0.0) < SMALL_US
    ]
    calls = sum(row.calls for row in small) / report.steps.decode
    kernels_us = sum(row.us for row in small)
    # The breakdown of a token has the same kernels: one statistic for both.
    drawn = waterfall_of(report)
    for part in drawn.parts:
        if part.kind == "small" and drawn.account.phase == "decode" and part.us > 0:
            per_token = report.steps.us_per_token(1.0)
            us = part.us + part.node_us  # of a kernel that is fused away its node goes, too
            calls, kernels_us = part.calls, us / per_token if per_token else kernels_us
    between = _between_kernels_us(report)
    us = kernels_us + between * calls * report.steps.decode
    if us < _MUCH_SMALL * whole or calls < _MANY_SMALL:
        return
    took: dict[str, float] = defaultdict(float)
    for row in small:
        took[row.component] += row.us / report.steps.decode
    most = sorted(took, key=lambda name: -took[name])[:_NAMED]
    parts = ", ".join(f"{name} {took[name]:,.0f} us" for name in most)
    passes = _passes(report, most)
    yield Observation(ms_per_token(report, us),
        f"{calls:,.0f} kernels of a decode step take under {SMALL_US:g} us each, "
        f"{kernels_us / report.steps.decode:,.1f} us together, with "
        f"{between * calls:,.1f} us between them ({parts}): "
        f"{100 * us / whole:.1f} % of the step.",
        _how_to_fuse(report, most, passes),
        (
            "All the time of these kernels and from each to the next: what fusing them into others "
            "could save at most.",
        ),
        components=tuple(most),
        tries=tuple(f"{PASSES}{names[0]}=true" for names in passes),
    )  # fmt: skip


def _between_kernels_us(report: Report) -> float:
    """From the end of a kernel to the start of the next in a median decode step.

    What is longer than a graph needs is the host's, and no fusion's to save.
    """
    kernels, step = kernels_per_decode_step(report), report.decode_step
    return min(step.us(LAUNCH_GAPS) / kernels, BETWEEN_KERNELS_US) if kernels and step else 0.0


def _passes(report: Report, components: Sequence[str]) -> list[tuple[str, ...]]:
    """torch.compile's passes for the components that have most of the small kernels."""
    if runs_eagerly(report) or not is_at_least(report, *_FUSIONS_SINCE):
        return []
    passes = dict.fromkeys(_FUSIONS[name] for name in components if name in _FUSIONS)
    if not has_qk_norm(report.modules):
        passes.pop(_ROPE, None)
    if any(row.conversion == "quantize" and row.decode_us for row in report.kernels):
        passes[_QUANTIZING] = None
    return list(passes)


def _how_to_fuse(
    report: Report, components: Sequence[str], passes: Sequence[tuple[str, ...]]
) -> str:
    """Advice for the components that have most of the small kernels, the first one first."""
    if runs_eagerly(report):
        return "Leave out --enforce-eager: torch.compile fuses most of them."
    if not is_at_least(report, *_FUSIONS_SINCE):
        return "Fuse them: torch.compile's fusion passes, or backends that need fewer kernels."
    advice = {
        names: f"{' and '.join(names)} in --compilation-config's pass_config" for names in passes
    }
    routed = {
        name: _MOE
        for name in components
        if name in ("router", "experts") and not runs_already(report.run.swaps, name)
    }
    texts = dict.fromkeys(
        routed.get(name) or advice.get(_FUSIONS.get(name, ()), "") for name in components
    )
    texts.update(dict.fromkeys(advice.values()))
    texts.pop("", None)
    if not texts:
        return "Fuse them: a backend that needs fewer kernels for the same work."
    return f"Fuse them: {'; '.join(texts)}."


@rule("copies-in-decode", "timeline", "copies and memsets of 3 %", ("memcpy",))
def _copies(report: Report) -> Iterator[Observation]:
    decode = next((row.sums for row in report.summed_steps if row.phase == "decode"), None)
    whole = decode_steps_us(report)
    if decode is None or not decode.steps or not whole or not report.copies.items:
        return
    if decode.copies_us < _MUCH_COPIED * whole:
        return
    most = max(report.copies.items, key=lambda item: item.us)
    fix = (
        "Pageable memory makes the host wait for each copy: pin it (pin_memory=True where the "
        "batch is prepared)."
        if any("Pageable" in item.name for item in report.copies.items)
        else "Record with --nvtx to see where they come from. Copies on the device mostly change a "
        "layout for the next kernel: another backend may need none."
    )
    yield Observation(ms_per_token(report, decode.copies_us),
        f"Copies and memsets take {decode.copies_us / decode.steps:,.0f} us of a decode step, "
        f"{100 * decode.copies_us / whole:.1f} %; over all steps most of that is {most.calls:,} x "
        f"{most.name}.",
        fix,
        ("Time of copies in decode steps; what overlaps kernels is counted as well.",),
    )  # fmt: skip


@rule("sampler-cost", "kernels", "a sampler of 3 %", ("sampler",))
def _sampler(report: Report) -> Iterator[Observation]:
    whole = decode_steps_us(report)
    step_times = (row.decode_us_per_step for row in report.components if row.name == "sampler")
    us = sum(step_times) * report.steps.decode
    if not whole or us < _MUCH_SAMPLED * whole or report.run.units == "op":
        return
    rows = [row for row in report.kernels if row.component == "sampler" and row.decode_us]
    fix = (
        "It sorts the whole vocabulary: FlashInfer samples top-k and top-p without sorting "
        "(install flashinfer, VLLM_USE_FLASHINFER_SAMPLER=1)."
        if sum(row.decode_us for row in rows if "sort" in row.name.lower()) > us / 2
        else "Ask only for what is needed: no logprobs, penalties or logit processors; greedy "
        "sampling where the answer may be the same each time."
    )
    most = max(rows, key=lambda row: row.decode_us).name if rows else ""
    yield Observation(ms_per_token(report, us),
        f"Choosing tokens takes {written_time(us / report.steps.decode)} of a decode step, "
        f"{100 * us / whole:.1f} %" + (f", most of it in {most}." if most else "."),
        fix,
        ("Kernels of the component sampler in decode steps.",),
    )  # fmt: skip
