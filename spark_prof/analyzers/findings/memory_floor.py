"""Rules about kernels that are far from what the memory allows, and about bytes worth saving."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.answers import written_time
from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.finding import NamedKernel
from spark_prof.analyzers.findings.other_backends import advice, other_backends
from spark_prof.analyzers.findings.rule import Observation, is_at_least, ms_per_token, rule
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import RooflinePhase, RooflineRow
from spark_prof.analyzers.roofline.rows import together
from spark_prof.analyzers.swapped_run import runs_already, weights_unknown
from spark_prof.rules import thresholds

_FAR = thresholds.FAR_TIMES.value
_MATTERS = thresholds.KERNEL_SHARE.value

_MOST = 5
_WIDE_SHARE = thresholds.WIDE_SHARE.value
_REREAD = thresholds.REREAD_TIMES.value

_NARROWED = ("qkv", "o_proj", "lm_head", "mlp", "shared_experts", "experts", "ssm")
_FP8_SAVES, _MXFP4_SAVES = (1 - BYTES[form] / BYTES["bf16"] for form in ("fp8", "mxfp4"))

_BACKENDS_SINCE = (0, 23)
_QUANTIZE = "--quantization fp8"


@rule("far-from-memory-floor", "kernels",
      "a kernel that the memory limits takes more than twice its lower bound in decode "
      "steps, and the rest is more than 2 % of the step; of experts only where one "
      "token chooses them")  # fmt: skip
def _far_from_floor(report: Report) -> Iterator[Observation]:
    phase, step = _decode(report)
    if phase is None or report.roofline is None or not step:
        return
    # What one kernel does for a component is one thing to change, whatever its roles.
    far = [
        row
        for row in sorted(together(phase.rows).values(), key=lambda row: -(row.left_us or 0.0))
        if row.limiter == "memory"
        and row.floor_us
        and row.bandwidth
        and not row.expected
        and row.us > _FAR * row.floor_us
        and (row.left_us or 0.0) > _MATTERS * step
    ]
    reader = report.roofline.ceilings.bandwidth
    ceiling = [f"Ceiling: {reader.value / 1e9:,.0f} GB/s, {reader.source}."] if reader else []
    for row in far[:_MOST]:
        left = row.left_us or 0.0
        reached = (
            f", {100 * row.of_reached:.0f} % of what this GPU's memory delivers"
            if row.of_reached
            else ""
        )
        yield Observation(row.left_ms_per_token,
            f"{short_name(row.name)} ({row.component}; {row.what}) reads "
            f"{(row.needed_bytes or 0) / 1e6:,.1f} MB in {row.us:,.1f} us, "
            f"{(row.bandwidth or 0) / 1e9:,.0f} GB/s{reached}; {row.calls:,.0f} calls of a decode "
            f"step are {written_time(left)} above their lower bound, "
            f"{100 * left / step:.1f} % of the step.",
            _other_kernel(report, row),
            (
                f"Bytes: {row.basis}.",
                *ceiling,
                "What a perfect reader would save: no kernel brings all of it.",
            ),
            components=(row.component,),
            subject=_subject(row),
            tries=_backends(report, row),
            kernels=(NamedKernel(row.name, row.component, row.weights),),
        )  # fmt: skip


@rule("bf16-weights-dominate", "kernels",
      "a quarter of the bytes that a decode step streams are weights that nobody quantized, and "
      "their kernels take an eighth of it")  # fmt: skip
def _wide_weights(report: Report) -> Iterator[Observation]:
    phase, step = _decode(report)
    if phase is None or report.roofline is None or not step:
        return
    wide = [
        row
        for row in report.roofline.weights
        if not row.quantized and row.component in _NARROWED and row.share >= _MATTERS
        if not weights_unknown(report.run.swaps, row.component)
    ]
    share = sum(row.share for row in wide)
    names = {row.component for row in wide}
    rows = [row for row in phase.rows if row.limiter == "memory"]
    rows = [row for row in (*rows, *phase.rows_by_component()) if row.component in names]
    us = sum(row.step_us for row in rows)
    if share < _WIDE_SHARE or us < _WIDE_SHARE / 2 * step:
        return
    formats = {m.quant_method for m in report.modules if m.component in _NARROWED}
    no_checkpoint = all(not method or method.startswith("Unquantized") for method in formats)
    fix = (
        f"Serve it with {_QUANTIZE}, or a checkpoint in FP8, NVFP4 or MXFP4."
        if no_checkpoint
        else "Use or make a checkpoint in which these layers are quantized too (llm-compressor, "
        "NVIDIA Model Optimizer): the one that ran leaves them out in its quantization_config."
    )
    per_token = ms_per_token(report, us * report.steps.decode)
    parts = ", ".join(f"{row.component} {row.bytes / 1e9:.2f} GB" for row in wide)
    evidence = [
        f"Read in {us:,.0f} us of the {step:,.0f} us of a decode step.",
        "FP8 halves these bytes; MXFP4 takes 0.53 bytes in place of 2, NVFP4 0.56. At most that "
        "share of their time goes, and accuracy has to be checked.",
    ]
    if per_token is not None:
        evidence.append(
            f"At most {per_token * _FP8_SAVES:.2f} ms per token with FP8, "
            f"{per_token * _MXFP4_SAVES:.2f} ms with MXFP4."
        )
    yield Observation(None if per_token is None else per_token * _MXFP4_SAVES,
        f"{100 * share:.0f} % of the bytes that a decode step streams are weights in "
        f"{' and '.join(dict.fromkeys(row.dtype for row in wide))}: {parts}.",
        fix,
        tuple(evidence),
        components=tuple(row.component for row in wide),
        tries=(_QUANTIZE,) if no_checkpoint else (),
    )  # fmt: skip


@rule("read-more-than-needed", "kernels",
      "hardware counters saw a kernel of decode steps read 1.2 times its weights and "
      "KV cache")  # fmt: skip
def _read_again(report: Report) -> Iterator[Observation]:
    phase, step = _decode(report)
    if phase is None or not step:
        return
    for row in phase.rows:
        times, us = row.amplification, row.step_us
        if times is None or times < _REREAD or us < _MATTERS * step or row.limiter != "memory":
            continue
        saved = 1 - 1 / times
        per_token = ms_per_token(report, us * report.steps.decode)
        yield Observation(None if per_token is None else per_token * saved,
            f"{short_name(row.name)} ({row.component}; {row.what}) reads "
            f"{(row.read_bytes or 0) / 1e6:,.1f} MB a call, {times:.2f} times the "
            f"{row.streamed_bytes / 1e6:,.1f} MB of its weights and KV cache.",
            "It reads weights more than once or pads them: "
            + _other_kernel(report, row, "try"),
            (f"Read: {row.read_by}. Needed: {row.basis}.",),
            components=(row.component,),
            subject=_subject(row),
            tries=_backends(report, row),
            kernels=(NamedKernel(row.name, row.component, row.weights),),
        )  # fmt: skip


def _subject(row: RooflineRow) -> str:
    """Which of its component's products a kernel computes, such as `experts w2`."""
    return f"{row.component} {row.product}" if row.product else row.component


def _decode(report: Report) -> tuple[RooflinePhase | None, float]:
    """What a decode step takes; its kernels' time where nothing tells the step's."""
    phase = report.decode_roofline
    return phase, (phase.step_us or phase.kernels_us) if phase else 0.0


def _is_wide(report: Report, row: RooflineRow) -> bool:
    """Whether the kernel reads weights of a layer that is not quantized."""
    weights = [w for w in report.streamed if w.component == row.component]
    wide = any(not w.quantized for w in weights)
    return wide and row.component in _NARROWED and row.component != "experts"


def _backends(report: Report, row: RooflineRow) -> tuple[str, ...]:
    """The backend that `_other_kernel` names."""
    swapped = runs_already(report.run.swaps, row.component)
    if swapped or _is_wide(report, row) or not is_at_least(report, *_BACKENDS_SINCE):
        return ()
    backends = other_backends(report, row.component, row.name)
    return (f"{backends.option} {backends.values[0]}",) if backends and backends.values else ()


def _other_kernel(report: Report, row: RooflineRow, first: str = "Try") -> str:
    """What this GPU, format and version leave to try for a kernel."""
    if runs_already(report.run.swaps, row.component):
        return "It is spark-prof's own kernel, and none is known to be faster here."
    if _is_wide(report, row):
        return (
            f"{first} the {row.component} in a quantized format: vLLM has one kernel for layers "
            "that are not quantized, and no option for another."
        )
    if not is_at_least(report, *_BACKENDS_SINCE):
        return f"{first} another kernel for {row.component}, and measure the same steps again."
    if backends := other_backends(report, row.component, row.name):
        return advice(backends, first)
    return f"No option of vLLM chooses the kernel of {row.component}; its own kernel library does."
