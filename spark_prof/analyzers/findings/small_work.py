"""Rules about work that is no product of matrices: many small kernels, copies, the sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import (
    BETWEEN_KERNELS_US,
    Rule,
    decode_steps_us,
    is_at_least,
    kernels_per_decode_step,
    ms_per_token,
    rule,
    runs_eagerly,
)
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import LAUNCH_GAPS

_SMALL_US = 3.0
_MANY_SMALL = 50
_MUCH_SMALL = 0.1
_MUCH_COPIED = 0.03
_MUCH_SAMPLED = 0.03
_NAMED = 3

_FUSIONS_SINCE = (0, 24)
_MOE = "a MoE backend that routes, multiplies and sums in fewer kernels (--moe-backend)"
_ROPE = (
    "enable_qk_norm_rope_fusion in --compilation-config's pass_config, for models that normalize "
    "q and k"
)
_FUSIONS = {
    "router": _MOE,
    "experts": _MOE,
    "norm": _ROPE,
    "rope": _ROPE,
    "collective": "fuse_allreduce_rms in --compilation-config's pass_config",
}
"""What fuses the small kernels of a component, by the names of vLLM 0.24 to 0.33."""
_QUANTIZING = "fuse_norm_quant and fuse_act_quant in --compilation-config's pass_config"


@rule("small-kernels", "kernels",
      "50 kernels under 3 us that take 10 % of a decode step, with the time between "
      "them")  # fmt: skip
def _small_kernels(report: Report) -> Iterator[Finding]:
    shapes, whole = report.shapes, decode_steps_us(report)
    if shapes is None or not whole or not report.steps.decode:
        return
    small = [row for row in shapes.rows if row.us_per_call < _SMALL_US]
    calls = sum(row.calls for row in small) / report.steps.decode
    ran = sum(row.us for row in small)
    between = _between_kernels_us(report)
    us = ran + between * calls * report.steps.decode
    if us < _MUCH_SMALL * whole or calls < _MANY_SMALL:
        return
    took: dict[str, float] = {}
    for row in small:
        took[row.component] = took.get(row.component, 0.0) + row.us / report.steps.decode
    most = sorted(took, key=lambda name: -took[name])[:_NAMED]
    parts = ", ".join(f"{name} {took[name]:,.0f} us" for name in most)
    yield Finding("small-kernels", ms_per_token(report, us),
        f"{calls:,.0f} kernels of a decode step last under {_SMALL_US:g} us each and "
        f"{ran / report.steps.decode:,.0f} us together ({parts}); with the {between:.2f} us from "
        f"one kernel to the next that is {us / whole:.1%} of the step.",
        _how_to_fuse(report, most),
        (
            "All the time of these kernels and from each to the next: what fusing them into others "
            "could save at most.",
        ),
    )  # fmt: skip


def _between_kernels_us(report: Report) -> float:
    """From the end of a kernel to the start of the next in a median decode step.

    What is longer than a graph needs is the host's, and no fusion's to save.
    """
    kernels = kernels_per_decode_step(report)
    ledger = report.decode_ledger
    gaps = ledger.us(LAUNCH_GAPS) if ledger else 0.0
    return min(gaps / kernels, BETWEEN_KERNELS_US) if kernels else 0.0


def _how_to_fuse(report: Report, components: Sequence[str]) -> str:
    """Advice for the components that have most of the small kernels, the first one first."""
    if runs_eagerly(report):
        return "Leave out --enforce-eager: torch.compile fuses most of them."
    if not is_at_least(report, *_FUSIONS_SINCE):
        return "Fuse them: torch.compile's fusion passes, or backends that need fewer kernels."
    quantizes = any(row.conversion == "quantize" and row.decode_us for row in report.kernels)
    advice = dict.fromkeys(_FUSIONS[name] for name in components if name in _FUSIONS)
    if quantizes:
        advice[_QUANTIZING] = None
    if not advice:
        return "Fuse them: a backend that needs fewer kernels for the same work."
    return f"Fuse them: {'; '.join(advice)}."


@rule("copies-in-decode", "timeline", "copies and memsets of 3 % of a decode step")
def _copies(report: Report) -> Iterator[Finding]:
    books = next((entry for entry in report.books if entry.phase == "decode"), None)
    whole = decode_steps_us(report)
    if books is None or not books.steps or not whole or not report.copies.items:
        return
    if books.copies_us < _MUCH_COPIED * whole:
        return
    most = max(report.copies.items, key=lambda item: item.us)
    if any("Pageable" in item.name for item in report.copies.items):
        fix = (
            "Pageable memory makes the host wait for each copy: pin it (pin_memory=True where the "
            "batch is prepared)."
        )
    else:
        fix = (
            "Record with --nvtx to see where they come from. Copies on the device mostly change a "
            "layout for the next kernel: another backend may need none."
        )
    yield Finding("copies-in-decode", ms_per_token(report, books.copies_us),
        f"Copies and memsets take {books.copies_us / books.steps:,.0f} us of a decode step, "
        f"{books.copies_us / whole:.1%}; over all steps most of that is {most.calls:,} x "
        f"{most.name}.",
        fix,
        ("Time of copies in decode steps; what overlaps kernels is counted as well.",),
    )  # fmt: skip


@rule("sampler-cost", "kernels", "a sampler of 3 % of a decode step")
def _sampler(report: Report) -> Iterator[Finding]:
    whole = decode_steps_us(report)
    us = sum(row.decode_us for row in report.components if row.name == "sampler")
    if not whole or us < _MUCH_SAMPLED * whole or report.run.units == "op":
        return
    rows = [row for row in report.kernels if row.component == "sampler" and row.decode_us]
    sorts = [row for row in rows if "sort" in row.name.lower()]
    sorted_us = sum(row.decode_us for row in sorts)
    if sorted_us > us / 2:
        fix = (
            "It sorts the whole vocabulary: FlashInfer samples top-k and top-p without sorting "
            "(install flashinfer, VLLM_USE_FLASHINFER_SAMPLER=1)."
        )
    else:
        fix = (
            "Ask only for what is needed: no logprobs, penalties or logit processors; greedy "
            "sampling where the answer may be the same each time."
        )
    most = max(rows, key=lambda row: row.decode_us).name if rows else ""
    yield Finding("sampler-cost", ms_per_token(report, us),
        f"Choosing tokens takes {us / report.steps.decode:,.0f} us of a decode step, "
        f"{us / whole:.1%}" + (f", most of it in {most}." if most else "."),
        fix,
        ("Kernels of the component sampler in decode steps.",),
    )  # fmt: skip


WORK: tuple[Rule, ...] = (
    _small_kernels,
    _copies,
    _sampler,
)
"""Rules about work beside the matrix products."""
