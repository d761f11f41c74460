"""The exact results of the kernels, in float64 and plain PyTorch, from the bytes they are given."""

from __future__ import annotations

import math

import torch

from spark_prof.kernels.candidate import Activation, ExpertsLayer, RouterLayer
from spark_prof.kernels.check.bound import (
    Expected,
    accumulated,
    activated,
    combined,
    exact,
    maybe_rounded,
    rounded,
)
from spark_prof.kernels.check.inputs import decode, part_of

_ROUNDING = 2.0**-24


def linear_oracle(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Expected:
    """What x [M, K] times the transposed weight [N, K], decoded to float64, gives in float32."""
    return accumulated(exact(x), weight, bias)


def scores_of(logits: torch.Tensor, router: RouterLayer) -> torch.Tensor:
    """What the experts are chosen by: with softmax without a correction, the logits."""
    scores = logits.to(torch.float64)
    scores = torch.sigmoid(scores) if router.scoring == "sigmoid" else scores
    return scores if router.correction is None else scores + router.correction


def routing_oracle(logits: torch.Tensor, router: RouterLayer) -> tuple[torch.Tensor, Expected]:
    """The experts [M, k] of each token, by logits [M, E], and their weights.

    The largest score comes first, among equals the lower number.
    """
    scores = scores_of(logits, router)
    ordered = scores.sort(stable=True, dim=-1, descending=True).indices
    experts = ordered[:, : router.top_k]
    return experts, routing_weights(logits, experts, router)


def routing_weights(logits: torch.Tensor, experts: torch.Tensor, router: RouterLayer) -> Expected:
    """What experts [M, k], however they were chosen, count for each token.

    In float32 an exponential is off by its argument's rounding and some units in the last place,
    each sum and quotient by half of one.
    """
    values = logits.to(torch.float64)
    sigmoid = router.scoring == "sigmoid"
    top = values.amax(-1, keepdim=True)
    parts = torch.sigmoid(values) if sigmoid else torch.exp(values - top)
    off = parts * (2 * (values if sigmoid else values - top).abs() + 16) * _ROUNDING
    off = off.nan_to_num(0.0)
    chosen, chosen_off = parts.gather(1, experts), off.gather(1, experts)
    if router.renormalize:
        whole, whole_off = chosen.sum(-1, keepdim=True), chosen_off.sum(-1, keepdim=True)
    elif sigmoid:
        whole, whole_off = torch.ones_like(top), torch.zeros_like(top)
    else:
        whole, whole_off = parts.sum(-1, keepdim=True), off.sum(-1, keepdim=True)
    weights = chosen / whole * router.scale
    additions = (experts if router.renormalize else logits).shape[1] + 16
    error = chosen_off / whole * abs(router.scale)
    error = error + weights.abs() * (whole_off / whole + additions * _ROUNDING)
    return Expected(weights, error + 2.0**-126)


def moe_oracle(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: Expected,
    layer: ExpertsLayer,
    rounded_between: bool = False,
) -> Expected:
    """What the chosen experts make of x [M, H], summed by their weights in float32.

    The hidden activations between the two products are bfloat16; all else stays float32.

    Args:
        x: bfloat16.
        experts: [M, k].
        weights: [M, k].
        rounded_between: allow for bfloat16 wherever one of vLLM's kernels ends, too: gate and up,
            the result of each expert, the routing weights.
    """
    weights = maybe_rounded(weights) if rounded_between else weights
    tokens, hidden = x.shape
    shape = (tokens, experts.shape[1], hidden)
    results = Expected(*(torch.zeros(shape, dtype=torch.float64, device=x.device) for _ in "ve"))
    for expert in experts.unique().tolist():
        token, place = (experts == expert).nonzero(as_tuple=True)
        got = _expert(x[token], layer, expert, rounded_between)
        results.value[token, place], results.error[token, place] = got.value, got.error
    return combined(results, weights)


def _expert(x: torch.Tensor, layer: ExpertsLayer, expert: int, rounded_between: bool) -> Expected:
    gate_up_bias, down_bias = (
        None if bias is None else bias[expert] for bias in (layer.gate_up_bias, layer.down_bias)
    )
    gate_up, down = (decode(part_of(weight, expert)) for weight in (layer.gate_up, layer.down))
    both = accumulated(exact(x), gate_up, gate_up_bias)
    both = maybe_rounded(both) if rounded_between else both
    gate, up = (
        Expected(*halves)
        for halves in zip(both.value.chunk(2, -1), both.error.chunk(2, -1), strict=True)
    )
    inner = activated(gate, up, *constants(layer.activation))
    if not rounded_between:
        return accumulated(rounded(inner), down, down_bias)
    return maybe_rounded(accumulated(maybe_rounded(inner), down, down_bias))


_BF16_ROUNDING = 2.0**-8 * (1 + 2.0**-6)
"""Of bfloat16, relative, with those of the roundings after it."""
_ADDITION = 2.0**-23
_NORM_ADDITIONS = 64
"""Besides those of the squares: of partial sums, of epsilon, the root and three products."""


def norm_oracle(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[Expected, ...]:
    """The norm, and the sum with the residual.

    vLLM's kernels round the quotient to bfloat16 before the weight multiplies it, and some of them
    round the sum before it is normed, of which the root of the mean sees as much again. All of that
    a kernel may do or leave. Squares are positive: their sum is off by an addition's part for each.
    """
    sums = x.to(torch.float64)
    roundings = 1
    if residual is not None:
        sums, roundings = sums + residual.to(torch.float64), 3
    inverse = (sums.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    value = sums * inverse * weight.to(torch.float64)
    relative = roundings * _BF16_ROUNDING + (x.shape[1] / 2 + _NORM_ADDITIONS) * _ADDITION
    normed = Expected(value, value.abs() * relative + 2.0**-126)
    return (normed,) if residual is None else (normed, Expected(sums, torch.zeros_like(sums)))


def constants(activation: Activation) -> tuple[float, float, float]:
    """The alpha, limit and shift of `bound.activated`."""
    silu = activation.name == "silu"
    return (1.0, math.inf, 0.0) if silu else (activation.alpha, activation.limit, 1.0)
