"""What slot `layer` takes of a recorded model, and what it leaves to vLLM for other slots."""

from __future__ import annotations

from collections.abc import Mapping

from spark_prof.analyzers.findings.other_backends import stored_format
from spark_prof.analyzers.model import Report
from spark_prof.rules.tune_candidates import EXPERTS_LAYER_MODELS, IN_LAYER, LAYER_MODELS, SWAPS

_FORMATS_BESIDE_SHARED = ("nvfp4", "mxfp4", "fp8", "bf16")
"""Of experts that are joined with a shared one: as `swaps.joined_weights.add_shared` takes them."""

_FORMATS: Mapping[str, tuple[str, ...]] = {swap.slot: swap.formats for swap in SWAPS}

_NORMED_PARTS = ("norm", "qkv", "router", "experts", "shared_experts")
"""Components of the parts that are replaced where a layer's attention is of another kind."""

_GROUPED = "DeepseekV3ForCausalLM"


def layer_components(architecture: str) -> tuple[str, ...]:
    """Components whose kernels slot `layer` has in a model of that class.

    layer_components("DeepseekV2ForCausalLM")[:3] == ("norm", "qkv", "router")
    """
    return _NORMED_PARTS if architecture in EXPERTS_LAYER_MODELS else IN_LAYER


def why_no_experts(report: Report, architecture: str) -> str:
    """Why the part with a layer's experts stays vLLM's; empty where it can be replaced."""
    stored, shared = stored_format(report, "experts"), stored_format(report, "shared_experts")
    has_shared = "shared_experts" in _weighted(report)
    if architecture == _GROUPED:
        return "slot layer refuses groups of experts, which these models have"
    if has_shared and shared != stored:
        return "slot layer joins a shared expert with the others, and their formats differ"
    kernels = {row.kernel for row in report.modules if row.component == "experts" and row.bytes}
    if stored == "bf16" and not any("Triton" in kernel for kernel in kernels):
        return "slot layer takes BF16 experts where vLLM's Triton kernel runs: --moe-backend triton"
    formats = _FORMATS_BESIDE_SHARED if has_shared else _FORMATS["moe"]
    if stored not in formats:
        return f"slot layer takes no {stored or 'mixed'} experts here"
    return ""


def slots_beside_layer(report: Report, architecture: str) -> frozenset[str]:
    """Slots that have layers to swap beside slot `layer`, which leaves these to vLLM.

    Empty where `layer` does not know the model's class, or the recording tells no layers; without
    formats only what a class tells.

    slots_beside_layer(report, "DeepseekV2ForCausalLM") == {"qkv", "mlp"}
    """
    components = _weighted(report)
    if architecture not in LAYER_MODELS:
        return frozenset()
    slots = set()
    if architecture in EXPERTS_LAYER_MODELS:  # MLA's further projections, MLPs without experts
        slots |= {"qkv", "mlp"} & components
    stored = stored_format(report, "experts") if "experts" in components else ""
    if stored and why_no_experts(report, architecture):
        slots |= {"moe", "router"}
        slots |= {"mlp"} if "shared_experts" in components else set()
    return frozenset(slots)


def _weighted(report: Report) -> set[str]:
    """Components of the model itself that hold weights, as those of no drafter."""
    return {row.component for row in report.modules if row.bytes and not row.part}
