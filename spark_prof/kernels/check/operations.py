"""The kernels as the cases call them, in the configurations that the dispatcher would choose."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spark_prof.kernels.check.moe_cases import Layer
from spark_prof.kernels.check.oracles import RoutingRule
from spark_prof.kernels.check.weights import Bf16, Weight
from spark_prof.kernels.dense import linear
from spark_prof.kernels.experts import Activation, pack_experts
from spark_prof.kernels.moe import moe
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.routing import Scoring, route
from spark_prof.kernels.tuned import choose_linear, choose_moe

__all__ = ["packed_linear", "packed_moe", "routed"]


def packed_linear(weight: Weight) -> Callable[..., object]:
    """Packs a weight; what it returns takes x, bias and out."""
    packed = pack_linear(weight.values if isinstance(weight, Bf16) else weight)

    def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
        config = choose_linear(packed, max(1, len(x)), insist=True).config
        return linear(x, packed, bias, out, config)

    return compute


def packed_moe(layer: Layer) -> Callable[..., object]:
    """Packs experts; what it returns takes x, logits, top_k and out."""
    biases = layer.gate_up_bias, layer.down_bias
    gate_up, down = layer.gate_up, layer.down
    assert not isinstance(gate_up, Bf16), "these kernels are for fewer bits"
    assert not isinstance(down, Bf16), "as gate_up"
    packed = pack_experts(gate_up, down, *biases, Activation(layer.activation))

    def compute(x: torch.Tensor, logits: torch.Tensor, top_k: int, out: torch.Tensor) -> object:
        config = choose_moe(packed, top_k, max(1, len(x)), insist=True).config
        return moe(x, logits, packed, top_k, out=out, config=config)

    return compute


def routed(
    logits: torch.Tensor, top_k: int, rule: RoutingRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chosen experts and their weights."""
    scoring: Scoring = "sigmoid" if rule.sigmoid else "softmax"
    got = route(logits, top_k, rule.renormalize, scoring, rule.correction, rule.scale)
    return got.experts, got.weights
