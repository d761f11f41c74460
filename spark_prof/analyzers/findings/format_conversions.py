"""Rules about changing formats in decode steps, and about lm_head, the last product of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.analyzers.classify.classifier import is_gemm, short_name
from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion
from spark_prof.analyzers.finding import NamedKernel
from spark_prof.analyzers.findings.rule import (
    PASSES,
    FindingRule,
    Observation,
    decode_steps_us,
    is_at_least,
    ms_per_token,
    rule,
    runs_eagerly,
)
from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.analyzers.swapped_run import weights_unknown
from spark_prof.rules import thresholds
from spark_prof.rules.components import DRAFTER, part_of
from spark_prof.rules.gpus import find_gpu

_KV = ("attention", "kv_write")
_MUCH_REPEATED = thresholds.REPEATED_SHARE.value
_PASSES = ("fuse_norm_quant", "fuse_act_quant")
_PASSES_RENAMED = (0, 13)
"""In this vLLM enable_fusion became fuse_norm_quant and fuse_act_quant (pull request 29646)."""


def _passes(report: Report) -> tuple[str, ...]:
    """The option that does it; none of a vLLM that had another."""
    renamed = not report.run.vllm or is_at_least(report, *_PASSES_RENAMED)
    return (f"{PASSES}{_PASSES[0]}=true",) if renamed else ()


def _fusion(report: Report) -> str:
    """How this run's vLLM fuses a quantization into what comes before it."""
    new, old = " and ".join(_PASSES), "enable_fusion"
    if not report.run.vllm:
        flag = f"{new} (before vLLM 0.13: {old})"
    else:
        flag = new if is_at_least(report, *_PASSES_RENAMED) else old
    how = f"turn on {flag} in --compilation-config's pass_config"
    if runs_eagerly(report):
        return f"Leave out --enforce-eager (torch.compile fuses) and {how}"
    return how[0].upper() + how[1:]


def _kind(
    name: str,
    title: str,
    chosen: Callable[[AttributedConversion], bool],
    least: float,
    fix: str,
    compiled: str = "",
    reported: str = "",
    tries: Callable[[Report], tuple[str, ...]] = lambda _: (),
) -> FindingRule[Report]:
    """A rule about some conversions.

    Args:
        least: share of the decode steps from which on they matter.
        fix: what to do; `{fusion}` stands for how this vLLM fuses quantizations.
        compiled: what torch.compile would do about them, for a run without it.
        reported: what others measured, with the source.
        tries: the options in `fix`.
    """

    def look(report: Report) -> Iterator[Observation]:
        conversions = (*report.conversions.attributed, *report.conversions.padding)
        rows = [row for row in conversions if chosen(row) and row.decode_us]
        us, whole = sum(row.decode_us for row in rows), decode_steps_us(report)
        if not rows or not us >= least * whole > 0:
            return
        calls = sum(row.calls_per_step for row in rows)
        places = ", ".join(dict.fromkeys(row.component for row in rows))
        most = rows[0]
        reader = f", read by {short_name(most.consumer)}" if most.consumer else ""
        advice = fix.format(fusion=_fusion(report))
        if compiled and runs_eagerly(report):
            advice += f" Without --enforce-eager {compiled}."
        yield Observation(ms_per_token(report, us),
            f"{title[0].upper()}{title[1:]}: {calls:,.3g} kernels and "
            f"{us / report.steps.decode:,.1f} us of a decode step, {100 * us / whole:.1f} % of it, "
            f"for {places}.",
            advice,
            (
                "All the time of these kernels; what takes their place needs some of it.",
                f"Most of it: {short_name(most.name)}{reader}.",
                *([reported] if reported else []),
            ),
            tries=tries(report),
            kernels=tuple(NamedKernel(name) for name in (most.name, most.consumer) if name),
        )  # fmt: skip

    return FindingRule(name, f"{title}, {100 * least:g} %", look, "conversions", ("conversion",))


_MARLIN = "--moe-backend marlin"
CONVERSIONS = (
    _kind("activations-quantized-apart",
        "activations are quantized by kernels of their own before matrix products",
        lambda row: row.kind == "quantize" and row.component not in (*_KV, "experts"), 0.01,
        "{fusion}: that fuses it into the norm or activation before it.", tries=_passes),
    _kind("expert-inputs-quantized-apart",
        "the inputs of experts are quantized by kernels of their own",
        lambda row: row.kind == "quantize" and row.component == "experts", 0.01,
        f"Choose a MoE backend that reads BF16 activations ({_MARLIN}) or one that "
        "quantizes while it permutes, and compare: the formats differ in accuracy too.",
        tries=lambda _: (_MARLIN,),
        reported="Reported: BF16 to MXFP8 before the experts of gpt-oss-120b cost 8 % of the "
        "tokens per second on a GB10 (NVIDIA developer forum)."),
    _kind("kv-cache-converted-apart",
        "attention's inputs or KV cache are converted by kernels of their own",
        lambda row: row.kind in ("quantize", "dequantize") and row.component in _KV, 0.01,
        "Compare with --kv-cache-dtype auto: a BF16 cache needs none of it, and short contexts "
        "read few bytes of it.",
        compiled="torch.compile can fuse the query's quantization"),
    _kind("weights-dequantized", "weights are dequantized for each step",
        lambda row: row.kind == "dequantize" and row.component not in _KV, 0.01,
        "Use a kernel that multiplies the weights as they are stored: --quantization awq_marlin or "
        "gptq_marlin for 4-bit integers, a --linear-backend and --moe-backend other than emulation "
        "for FP4 and FP8."),
    _kind("scales-swizzled", "scales are rearranged at run time", lambda row: row.kind == "swizzle",
        0.005,
        "Scales of weights can be swizzled when they are loaded, those of activations by the "
        "kernel that quantizes them: choose another --linear-backend or --moe-backend, or a later "
        "vLLM and FlashInfer."),
    _kind("padding-around-products", "inputs are padded by kernels of their own",
        lambda row: row.kind == "pad", 0.005,
        "Choose a backend whose tiles divide this model's sizes (--linear-backend, --moe-backend), "
        "or pad the weights once, when they are loaded, and keep activations in the padded size."),
    _kind("transposed-in-decode", "data are transposed by kernels of their own",
        lambda row: row.kind == "transpose", 0.01,
        "Choose a backend that reads the layout in which its input is written (--linear-backend, "
        "--moe-backend, --attention-backend)."),
    _kind("casts-in-decode", "data are cast from one type to another by kernels of their own",
        lambda row: row.kind == "cast" and row.component != "lm_head", 0.02,
        "Run everything in the model's own type: --dtype auto, and no module that computes in FP32 "
        "between two that do not.",
        compiled="torch.compile fuses casts into their neighbours"),
    _kind("repacked-in-decode", "weights are repacked in decode steps",
        lambda row: row.kind == "repack", 0.005,
        "Repacking belongs into loading: report it to vLLM with this kernel's name, and choose "
        "another --linear-backend or --moe-backend meanwhile."),
)  # fmt: skip


@rule("quantized-once-per-consumer", "conversions",
      "one activation is quantized several times by the same kernel, 0.5 % of a "
      "decode step", ("conversion",))  # fmt: skip
def _repeated(report: Report) -> Iterator[Observation]:
    rows, step_us = report.conversions.repeated, decode_steps_us(report)
    extra_us = sum(row.extra_us for row in rows) * report.steps.decode
    if not rows or not step_us or extra_us < _MUCH_REPEATED * step_us:
        return
    extra, calls = sum(row.extra for row in rows), sum(row.calls for row in rows)
    parts = "; ".join(f"{short_name(row.name)} for {', '.join(row.components)}" for row in rows[:3])
    yield Observation(ms_per_token(report, extra_us),
        f"The same activations are quantized once for each of their consumers: {extra:,} of "
        f"{calls:,} quantizations of a decode step repeat one, "
        f"{extra_us / report.steps.decode:,.1f} us ({parts}).",
        "Quantize once and hand the result to all products that read it: merge the products "
        "(qkv_proj, gate_up_proj) where the checkpoint's scales allow it, or let the norm write "
        f"the quantized input. {_fusion(report)}.",
        (
            f"The order of kernels in decode step {rows[0].step}: products between two norms read "
            "one input until an activation or attention makes another.",
        ),
        tries=_passes(report),
        kernels=tuple(NamedKernel(row.name) for row in rows[:3]),
    )  # fmt: skip


_WIDE = frozenset({"bfloat16", "float16"})
_LINEAR = frozenset({"qkv", "o_proj", "experts", "shared_experts", "mlp", "ssm"})
_MOSTLY = thresholds.QUANTIZED_SHARE.value
_MATTERS = thresholds.HEAD_SHARE.value
_MUCH_CAST = thresholds.HEAD_CAST_SHARE.value
FP8_OF_16_BITS, _NVFP4_OF_16_BITS = (BYTES[form] / BYTES["bf16"] for form in ("fp8", "nvfp4"))


def _products_us(report: Report, precisions: tuple[str, ...] = ()) -> float:
    """Time of lm_head's products in decode steps, of these precisions or any."""
    return sum(
        row.decode_us_per_step * report.steps.decode
        for row in report.kernels
        if row.component == "lm_head"
        and is_gemm(row.name)
        and (not precisions or row.precision in precisions)
    )


@rule("lm-head-widened", "kernels",
      "lm_head computes in FP32, 1 %, or is cast, 0.5 %", ("lm_head",))  # fmt: skip
def _widened(report: Report) -> Iterator[Observation]:
    whole = decode_steps_us(report)
    casts = [row for row in report.conversions.attributed if row.kind == "cast"]
    casts_us = sum(row.decode_us for row in casts if row.component == "lm_head")
    in_fp32 = ("lm_head", "float32") in {(m.component, m.weight_dtype) for m in report.modules}
    linear_dtypes = {row.weight_dtype for row in report.modules if row.component in _LINEAR}
    products_us = _products_us(report) if in_fp32 else _products_us(report, ("fp32", "tf32"))
    # A model that computes in FP32 throughout was not widened.
    if products_us and linear_dtypes == {"float32"}:
        return
    if not whole or (products_us < _MATTERS * whole and casts_us < _MUCH_CAST * whole):
        return
    # FP32 weights have twice the bytes of 16-bit ones.
    saved_us = casts_us + products_us / 2
    parts = []
    if products_us:
        stored = "its weights are FP32" if in_fp32 else "its product runs in FP32"
        parts.append(f"{stored} ({products_us / report.steps.decode:,.1f} us of a decode step)")
    if casts_us:
        parts.append(f"casts take {casts_us / report.steps.decode:,.1f} us of it")
    yield Observation(ms_per_token(report, saved_us),
        f"lm_head is widened: {', '.join(parts)}.",
        "Keep lm_head in the model's own type: look for --dtype float32, for an lm_head.weight in "
        "FP32 in the checkpoint, and for a patch that widens it; vLLM's head_dtype is for pooling "
        "models only.",
        (
            "The casts, and half of the product, as FP32 weights have twice the bytes.",
            "Reported: with lm_head in MXFP4 in place of FP32, gpt-oss-120b went from 8 % fewer "
            "tokens per second than its baseline to 10 % more on a GB10 (NVIDIA developer forum).",
        ),
    )  # fmt: skip


@rule("lm-head-not-quantized", "kernels",
      "lm_head has 16-bit weights while most of the layers' are quantized, and 4 bits would save "
      "1 % of the decode steps; a drafter's own head counts by itself")  # fmt: skip
def not_quantized(report: Report) -> Iterator[Observation]:
    """Finds heads in 16 bits beside quantized layers, the model's and a drafter's."""
    linear = [row for row in report.modules if row.component in _LINEAR and row.bytes]
    narrow = sum(row.bytes for row in linear if row.weight_dtype not in (*_WIDE, "float32", ""))
    if narrow < _MOSTLY * sum(row.bytes for row in linear) or not narrow:
        return
    heads = [row for row in report.modules if row.component == "lm_head" and row.bytes]
    drafts = [row for row in heads if row.part]
    drafted = drafted_head_us(report)
    every = _products_us(report)
    for group in ([row for row in heads if not row.part], drafts):
        if not group or any(row.weight_dtype not in _WIDE or row.format for row in group):
            continue
        if group is not drafts and weights_unknown(report.run.swaps, "lm_head"):
            continue
        us = drafted if group is drafts else every - drafted if drafts else every
        yield from _one_head(report, group, us, 0.0 if drafts else drafted)


def _one_head(
    report: Report, rows: Sequence[ModuleRow], us: float, shared_us: float
) -> Iterator[Observation]:
    """What a head in 16 bits costs whose products take so long, a drafter's share among them."""
    whole = decode_steps_us(report)
    saved_us = us * (1 - _NVFP4_OF_16_BITS)
    if not whole or saved_us < _MATTERS * whole:
        return
    size = sum(row.bytes for row in rows)
    fp8 = ms_per_token(report, us * (1 - FP8_OF_16_BITS))
    fp8_gain = "" if fp8 is None else f" FP8 saves at most {fp8:.2f} ms per token."
    name = "The drafter's own lm_head" if rows[0].part else "lm_head"
    shared = [
        f"{shared_us / report.steps.decode:,.1f} us of it are the drafter's, which reads the same "
        "matrix in each of its passes; draft_lm_head_quantization (vLLM 0.33) gives it a narrow "
        "copy of its own, and leaves the answers as they are."
    ]
    yield Observation(ms_per_token(report, saved_us),
        f"{name} is {rows[0].weight_dtype} ({size / 1e9:.2f} GB) while the layers are quantized: "
        f"its product takes {us / report.steps.decode:,.1f} us of a decode step, "
        f"{100 * us / whole:.1f} %.",
        "Use a drafter that shares the model's lm_head, with draft_lm_head_quantization (vLLM "
        "0.33), or one whose checkpoint quantizes its own: the model still decides each token."
        if rows[0].part else
        "Use a checkpoint that quantizes lm_head too (its ignore or exclude list must not name "
        "it): ModelOpt and compressed-tensors can, and vLLM runs it. Check the accuracy.",
        (
            f"NVFP4 reads {100 * _NVFP4_OF_16_BITS:.0f} % of its bytes, which saves that much of "
            f"the product's time at most.{fp8_gain}",
            *_floor(report, size),
            *(shared if shared_us else ()),
            "Reported: 8 to 16 % more tokens per second on an RTX 5090 with an NVFP4 lm_head "
            "(kekzl/imp).",
        ),
        components=("lm_head",),
        subject=rows[0].part,
    )  # fmt: skip


def drafted_head_us(report: Report) -> float:
    """Time of a drafter's products with a head in decode steps."""
    phase = report.decode_roofline
    return sum(
        row.step_us * report.steps.decode
        for row in (phase.rows if phase else ())
        if row.component == "lm_head" and is_gemm(row.name) and part_of(row.role) == DRAFTER
    )


def _floor(report: Report, size: int) -> tuple[str, ...]:
    """How long reading so many bytes takes at least."""
    gpu = find_gpu(report.gpu.name, report.gpu.compute_capability)
    if gpu is None:
        return ()
    return (
        f"Reading {size / 1e9:.2f} GB takes {size / gpu.bandwidth.value * 1e6:,.0f} us at "
        f"{gpu.bandwidth.value / 1e12:.3g} TB/s ({gpu.bandwidth.source}).",
    )
