"""Rules about the last product of a model, whose weights are read whole for each token."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import Rule, decode_steps_us, ms_per_token, rule
from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.rules.gpus import find_gpu

_WIDE = frozenset({"bfloat16", "float16"})
_LINEAR = frozenset({"qkv", "o_proj", "experts", "shared_experts", "mlp", "ssm"})
_MOSTLY = 0.5
_MATTERS = 0.01
_MUCH_CAST = 0.005
_FP8_OF_16_BITS = 0.5
_NVFP4_OF_16_BITS = 4.5 / 16
"""Four bits a weight, and eight for the scale of sixteen."""


def _products_us(report: Report, precisions: tuple[str, ...] = ()) -> float:
    """Time of lm_head's products in decode steps, of these precisions or any."""
    return sum(
        row.decode_us
        for row in report.kernels
        if row.component == "lm_head"
        and is_gemm(row.name)
        and (not precisions or row.precision in precisions)
    )


@rule("lm-head-widened", "kernels",
      "lm_head computes in FP32, 1 % of the decode steps, or is cast, 0.5 %")  # fmt: skip
def _widened(report: Report) -> Iterator[Finding]:
    whole = decode_steps_us(report)
    casts_us = sum(
        row.decode_us
        for row in report.conversions.charged
        if row.kind == "cast" and row.component == "lm_head"
    )
    in_fp32 = any(
        row.component == "lm_head" and row.weight_dtype == "float32" for row in report.modules
    )
    others = {row.weight_dtype for row in report.modules if row.component in _LINEAR}
    products_us = _products_us(report) if in_fp32 else _products_us(report, ("fp32", "tf32"))
    # A model that computes in FP32 throughout was not widened.
    if products_us and others == {"float32"}:
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
    yield Finding("lm-head-widened", ms_per_token(report, saved_us),
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
      "1 % of the decode steps")  # fmt: skip
def _not_quantized(report: Report) -> Iterator[Finding]:
    heads = [row for row in report.modules if row.component == "lm_head" and row.bytes]
    if not heads or any(row.weight_dtype not in _WIDE for row in heads):
        return
    linear = [row for row in report.modules if row.component in _LINEAR and row.bytes]
    narrow = sum(row.bytes for row in linear if _is_quantized(row))
    if narrow < _MOSTLY * sum(row.bytes for row in linear) or not narrow:
        return
    us, whole = _products_us(report), decode_steps_us(report)
    saved_us = us * (1 - _NVFP4_OF_16_BITS)
    if not whole or saved_us < _MATTERS * whole:
        return
    size = sum(row.bytes for row in heads)
    fp8 = ms_per_token(report, us * (1 - _FP8_OF_16_BITS))
    each = "" if fp8 is None else f" FP8 saves at most {fp8:.2f} ms per token."
    yield Finding("lm-head-not-quantized", ms_per_token(report, saved_us),
        f"lm_head is {heads[0].weight_dtype} ({size / 1e9:.2f} GB) while the layers are quantized: "
        f"its product takes {us / report.steps.decode:,.1f} us of a decode step, {us / whole:.1%}.",
        "Use a checkpoint that quantizes lm_head as well (its ignore or exclude list must not name "
        "it): vLLM runs it as the checkpoint has it, and ModelOpt and compressed-tensors can. "
        "Check the accuracy.",
        (
            f"NVFP4 reads {_NVFP4_OF_16_BITS:.0%} of its bytes, which saves that much of the "
            f"product's time at most.{each}",
            *_floor(report, size),
            "Reported: 8 to 16 % more tokens per second on an RTX 5090 with an NVFP4 lm_head "
            "(kekzl/imp).",
        ),
    )  # fmt: skip


def _is_quantized(row: ModuleRow) -> bool:
    return row.weight_dtype not in (*_WIDE, "float32", "")


def _floor(report: Report, size: int) -> tuple[str, ...]:
    """How long reading so many bytes takes at least."""
    gpu = find_gpu(report.gpu.name, report.gpu.compute_capability)
    if gpu is None:
        return ()
    bandwidth = gpu.read_bandwidth or gpu.memory_bandwidth
    return (
        f"Reading {size / 1e9:.2f} GB takes {size / bandwidth.value * 1e6:,.0f} us at "
        f"{bandwidth.value / 1e12:.3g} TB/s ({bandwidth.source}).",
    )


LM_HEAD: tuple[Rule, ...] = (
    _widened,
    _not_quantized,
)
"""The rules about lm_head, as docs/findings.md lists them."""
