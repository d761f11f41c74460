"""The exact results of the kernels, in float64 and plain PyTorch, from the bytes they are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spark_prof.kernels.check.bound import (
    Expected,
    accumulated,
    activated,
    combined,
    exact,
    rounded,
)

__all__ = ["ExactExperts", "linear_oracle", "moe_oracle", "routing_oracle"]

_ROUNDING = 2.0**-24


def linear_oracle(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Expected:
    """What x [M, K] times the transposed weight [N, K], decoded to float64, gives in bfloat16."""
    return rounded(accumulated(exact(x), weight, bias))


def routing_oracle(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, Expected]:
    """The experts of each token, largest logit first, the lower number among equals; their weights.

    The weights are the softmax over the chosen experts' logits. In float32 an exponential is off by
    its argument's rounding and some units in the last place, and so are sum and quotient.
    """
    ordered, experts = logits.to(torch.float64).sort(stable=True, dim=-1, descending=True)
    chosen, experts = ordered[:, :top_k], experts[:, :top_k]
    below = (chosen - chosen[:, :1]).abs()
    weights = torch.softmax(chosen, -1)
    error = weights * (2 * below + top_k + 32) * _ROUNDING + 2.0**-126
    return experts, Expected(weights, error)


@dataclass(frozen=True)
class ExactExperts:
    """The experts of a layer, decoded.

    Attributes:
        gate_up: the [2 I, H] float64 weight of an expert by its number, gate rows before up rows.
        down: its [H, I] weight.
        gate_up_bias: [E, 2 I] or None.
        down_bias: [E, H] or None.
        alpha: of the activation, with `limit` and `shift`: see `bound.activated`.
    """

    gate_up: Callable[[int], torch.Tensor]
    down: Callable[[int], torch.Tensor]
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    alpha: float
    limit: float
    shift: float


def moe_oracle(
    x: torch.Tensor, experts: torch.Tensor, weights: Expected, layer: ExactExperts
) -> Expected:
    """What the chosen experts make of x [M, H], summed by their weights, in bfloat16.

    The hidden activations between the two products are bfloat16; all else stays float32.

    Args:
        x: bfloat16.
        experts: [M, k].
        weights: [M, k].
        layer: the experts.
    """
    tokens, hidden = x.shape
    shape = (tokens, experts.shape[1], hidden)
    results = Expected(*(torch.zeros(shape, dtype=torch.float64, device=x.device) for _ in "ve"))
    for expert in experts.unique().tolist():
        token, place = (experts == expert).nonzero(as_tuple=True)
        got = _expert(x[token], layer, expert)
        results.value[token, place], results.error[token, place] = got.value, got.error
    return rounded(combined(results, weights))


def _expert(x: torch.Tensor, layer: ExactExperts, expert: int) -> Expected:
    gate_up_bias, down_bias = (
        None if bias is None else bias[expert] for bias in (layer.gate_up_bias, layer.down_bias)
    )
    both = accumulated(exact(x), layer.gate_up(expert), gate_up_bias)
    gate, up = (
        Expected(*halves)
        for halves in zip(both.value.chunk(2, -1), both.error.chunk(2, -1), strict=True)
    )
    inner = rounded(activated(gate, up, layer.alpha, layer.limit, layer.shift))
    return accumulated(inner, layer.down(expert), down_bias)
