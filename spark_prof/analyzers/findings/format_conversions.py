"""Rules about changing formats in decode steps: work that brings no token nearer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import (
    Rule,
    decode_steps_us,
    is_at_least,
    ms_per_token,
    rule,
    runs_eagerly,
)
from spark_prof.analyzers.model import Report

_KV = ("attention", "kv_write")
_MUCH_REPEATED = 0.005
_PASSES_RENAMED = (0, 13)
"""In this vLLM enable_fusion became fuse_norm_quant and fuse_act_quant (pull request 29646)."""


def _fusion(report: Report) -> str:
    """How this run's vLLM fuses a quantization into what comes before it."""
    new, old = "fuse_norm_quant and fuse_act_quant", "enable_fusion"
    if not report.run.vllm:
        flag = f"{new} (before vLLM 0.13: {old})"
    else:
        flag = new if is_at_least(report, *_PASSES_RENAMED) else old
    how = f"turn on {flag} in --compilation-config's pass_config"
    if runs_eagerly(report):
        return f"Leave --enforce-eager out, as the fusions are passes of torch.compile, and {how}"
    return how[0].upper() + how[1:]


@dataclass(frozen=True)
class _Kind:
    """Conversions that are one finding."""

    id: str  # of the finding
    what: str  # what happens, in the words of a reader
    chosen: Callable[[AttributedConversion], bool]  # which conversions count
    least: float  # share of the decode steps from which on they matter
    fix: str  # what to do about them; `{fusion}` stands for how this vLLM fuses quantizations
    compiled: str = ""  # what torch.compile would do about them, for a run without it
    reported: str = ""  # what others measured, with the source

    @property
    def looks_for(self) -> str:
        """What fires it."""
        return f"{self.what}, {100 * self.least:g} % of the decode steps"

    def find(self, report: Report) -> Iterator[Finding]:
        """The finding, where these conversions take that long."""
        found = (*report.conversions.charged, *report.conversions.padding)
        rows = [row for row in found if self.chosen(row) and row.decode_us]
        us, whole = sum(row.decode_us for row in rows), decode_steps_us(report)
        if not rows or not us >= self.least * whole > 0:
            return
        calls = sum(row.calls_per_step for row in rows)
        places = ", ".join(dict.fromkeys(row.component for row in rows))
        most = rows[0]
        reader = f", read by {short_name(most.consumer)}" if most.consumer else ""
        fix = self.fix.format(fusion=_fusion(report))
        if self.compiled and runs_eagerly(report):
            fix += f" Without --enforce-eager {self.compiled}."
        yield Finding(self.id, ms_per_token(report, us),
            f"{self.what[0].upper()}{self.what[1:]}: {calls:,.3g} kernels and "
            f"{us / report.steps.decode:,.1f} us of a decode step, {us / whole:.1%} of it, for "
            f"{places}.",
            fix,
            (
                "All the time of these kernels; what takes their place needs some of it.",
                f"Most of it: {short_name(most.name)}{reader}.",
                *([self.reported] if self.reported else []),
            ),
        )  # fmt: skip


_KINDS = (
    _Kind("activations-quantized-apart",
        "activations are quantized by kernels of their own before matrix products",
        lambda row: row.kind == "quantize" and row.component not in (*_KV, "experts"), 0.01,
        "{fusion}, which fuse it into the norm or the activation before it."),
    _Kind("expert-inputs-quantized-apart",
        "the inputs of experts are quantized by kernels of their own",
        lambda row: row.kind == "quantize" and row.component == "experts", 0.01,
        "Choose a MoE backend that reads BF16 activations (--moe-backend marlin) or one that "
        "quantizes while it permutes, and compare: the formats differ in accuracy too.",
        reported="Reported: BF16 to MXFP8 before the experts of gpt-oss-120b cost 8 % of the "
        "tokens per second on a GB10 (NVIDIA developer forum)."),
    _Kind("kv-cache-converted-apart",
        "attention's inputs or KV cache are converted by kernels of their own",
        lambda row: row.kind in ("quantize", "dequantize") and row.component in _KV, 0.01,
        "Compare with --kv-cache-dtype auto: a BF16 cache needs none of it, and short contexts "
        "read few bytes of it.",
        compiled="torch.compile can fuse the query's quantization"),
    _Kind("weights-dequantized", "weights are dequantized for each step",
        lambda row: row.kind == "dequantize" and row.component not in _KV, 0.01,
        "Use a kernel that multiplies the weights as they are stored: --quantization awq_marlin or "
        "gptq_marlin for 4-bit integers, a --linear-backend and --moe-backend other than emulation "
        "for FP4 and FP8."),
    _Kind("scales-swizzled", "scales are rearranged at run time", lambda row: row.kind == "swizzle",
        0.005,
        "Scales of weights can be swizzled when they are loaded, those of activations by the "
        "kernel that quantizes them: choose another --linear-backend or --moe-backend, or a later "
        "vLLM and FlashInfer."),
    _Kind("padding-around-products", "inputs are padded by kernels of their own",
        lambda row: row.kind == "pad", 0.005,
        "Choose a backend whose tiles divide this model's sizes (--linear-backend, --moe-backend), "
        "or pad the weights once, when they are loaded, and keep activations in the padded size."),
    _Kind("transposed-in-decode", "data are transposed by kernels of their own",
        lambda row: row.kind == "transpose", 0.01,
        "Choose a backend that reads the layout in which its input is written (--linear-backend, "
        "--moe-backend, --attention-backend)."),
    _Kind("casts-in-decode", "data are cast from one type to another by kernels of their own",
        lambda row: row.kind == "cast" and row.component != "lm_head", 0.02,
        "Run everything in the model's own type: --dtype auto, and no module that computes in FP32 "
        "between two that do not.",
        compiled="torch.compile fuses casts into their neighbours"),
    _Kind("repacked-in-decode", "weights are repacked in decode steps",
        lambda row: row.kind == "repack", 0.005,
        "Repacking belongs into loading: report it to vLLM with this kernel's name, and choose "
        "another --linear-backend or --moe-backend meanwhile."),
)  # fmt: skip


@rule("quantized-once-per-consumer", "conversions",
      "one activation is quantized several times by the same kernel, 0.5 % of a "
      "decode step")  # fmt: skip
def _repeated(report: Report) -> Iterator[Finding]:
    rows, step_us = report.conversions.repeated, decode_steps_us(report)
    extra_us = sum(row.extra_us for row in rows) * report.steps.decode
    if not rows or not step_us or extra_us < _MUCH_REPEATED * step_us:
        return
    extra, calls = sum(row.extra for row in rows), sum(row.calls for row in rows)
    parts = "; ".join(f"{short_name(row.name)} for {', '.join(row.components)}" for row in rows[:3])
    yield Finding("quantized-once-per-consumer", ms_per_token(report, extra_us),
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
    )  # fmt: skip


CONVERSIONS: tuple[Rule, ...] = (
    *(Rule(kind.id, "conversions", kind.looks_for, kind.find) for kind in _KINDS),
    _repeated,
)
"""The rules about conversions, as docs/findings.md lists them."""
