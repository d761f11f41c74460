"""The exact results of the kernels, in float64, and how far a right kernel may lie from them.

The bounds are derived here, tuned nowhere. The arithmetic that they allow is: weights decoded
exactly, products exact, sums in float32 in any order, results rounded to bfloat16 once. What
follows from it:

- A sum of n products lies within n 2^-23 sum|x||w| of the exact one. Each of n additions is off by
  half a unit in the last place of a partial sum where it rounds, and by a whole one, 2^-23, where a
  tensor core cuts; a partial sum is at most sum|x||w|. A step of Hopper's tensor cores adds 17
  terms, each cut at 2^-25 of the largest, and cuts the sum at 2^-23: less than 16 such additions.
- Rounding keeps order. If the float32 result lies between low and high, then the bfloat16 result
  lies between low rounded and high rounded, both taken in. Against the exact result that is at most
  eps |y| more, eps being 2^-8. As |y| <= sum|x||w|, an error is never allowed beyond
  c eps sum|x||w| with c = 1 + n 2^-15 (1.09 for 2880 products), and mostly far less is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import (
    Activation,
    ExpertsLayer,
    NormedExpertsLayer,
    NormedMlpLayer,
    RouterLayer,
)
from spark_prof.kernels.check.inputs import decode, part_of

_ADDITION = 2.0**-23
_STEPS_BESIDE = 32
"""Additions besides those of the products: of the splits, of scales (each rounds) and the bias."""
_SMALLEST = 2.0**-149
"""The smallest float32 above 0: a product or a sum under 2^-126 is off by up to half of it."""
_STEEPEST = 1.1
"""No more than this is the slope of x sigmoid(x): its largest is 1.0999, at x = 2.4."""


@dataclass(frozen=True)
class Expected:
    """An exact result and how far from it a right kernel may lie, both float64, by element."""

    value: torch.Tensor  # NaN and infinities where the inputs make them
    # 0 or more; infinite where float32 cannot hold the sum, so that anything goes.
    error: torch.Tensor


def exact(values: torch.Tensor) -> Expected:
    """What a kernel is given, without error."""
    values = values.to(torch.float64)
    return Expected(values, torch.zeros_like(values))


def accumulated(x: Expected, weight: torch.Tensor, bias: torch.Tensor | None) -> Expected:
    """What x [M, K] times the transposed weight [N, K], plus the bias, gives in float32."""
    products = weight.shape[1]
    value = x.value @ weight.T
    size = (x.value.abs() + x.error) @ weight.abs().T
    brought = x.error @ weight.abs().T
    if bias is not None:
        value = value + bias.to(torch.float64)
        size = size + bias.to(torch.float64).abs()
    error = brought + (products + _STEPS_BESIDE) * (_ADDITION * size + _SMALLEST)
    return Expected(value, torch.where(size < 2.0**127, error, torch.inf))


def rounded(result: Expected) -> Expected:
    """The result as bfloat16: every value that the rounding of an allowed one may give."""
    value = _to_bf16(result.value)
    low, high = _to_bf16(result.value - result.error), _to_bf16(result.value + result.error)
    same = (low == value) & (high == value)
    error = torch.maximum(_apart(high, value), _apart(value, low))
    return Expected(value, torch.where(same, 0.0, error))


def maybe_rounded(result: Expected) -> Expected:
    """The result where a kernel may round it to bfloat16, up to three times, or leave it float32.

    vLLM's kernels round a product, then an activation's factors or a weighted result once more.
    Each rounding is off by at most 2^-8 of what it rounds, and by 2^-134 where that is subnormal.
    """
    size = result.value.abs() + result.error
    return Expected(result.value, result.error + 3 * (2.0**-8 * (1 + 2.0**-6) * size + 2.0**-134))


def activated(gate: Expected, up: Expected, alpha: float, limit: float, shift: float) -> Expected:
    """The activation gate sigmoid(alpha gate) (up + shift), evaluated in float32.

    First the gate is held at `limit` or below, and up between -limit and limit.

    SiLU is alpha 1, limit infinity, shift 0; gpt-oss has 1.702, 7 and 1. Clamping moves no two
    values apart, so the errors that come in grow only by the slopes. An exponential in float32 is
    off by its argument's rounding, |x| 2^-23, and some units in the last place; where it overflows
    the result is 0 in place of less than 2^-120.
    """
    g = gate.value.clamp(max=limit)
    u = up.value.clamp(-limit, limit) + shift
    swish = g * torch.sigmoid(alpha * g)
    value = swish * u
    slopes = _STEEPEST * gate.error * (u.abs() + up.error) + swish.abs() * up.error
    evaluation = (16 + 2 * alpha * g.abs()) * _ADDITION * value.abs() + 2.0**-120 * (u.abs() + 1)
    return Expected(value, slopes + evaluation)


def squared(up: Expected) -> Expected:
    """The square of what is above 0, in float32: rounded once."""
    above = up.value.clamp(min=0)
    brought = (2 * above + up.error) * up.error
    rounding = _ADDITION * (above + up.error).square() + _SMALLEST
    return Expected(above.square(), brought + rounding)


def combined(results: Expected, weights: Expected) -> Expected:
    """The sum of the experts' results [M, k, H], each times its routing weight, in float32."""
    w, w_error = weights.value[..., None], weights.error[..., None]
    value = (results.value * w).sum(1)
    size = ((results.value.abs() + results.error) * (w.abs() + w_error)).sum(1)
    brought = ((w.abs() + w_error) * results.error + w_error * results.value.abs()).sum(1)
    additions = results.value.shape[1] + 2
    return Expected(value, brought + additions * (_ADDITION * size + _SMALLEST))


def _to_bf16(values: torch.Tensor) -> torch.Tensor:
    """Rounded to the nearest bfloat16, by way of float32 as a kernel does."""
    return values.to(torch.float32).to(torch.bfloat16).to(torch.float64)


def _apart(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Their distance; infinite where it is no number."""
    return (high - low).nan_to_num(torch.inf, torch.inf, torch.inf)


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
    x: torch.Tensor | Expected,  # bfloat16
    experts: torch.Tensor,  # [M, k]
    weights: Expected,  # [M, k]
    layer: ExpertsLayer,
    # Allow for bfloat16 wherever one of vLLM's kernels ends, too: gate and up, the result of
    # each expert, the routing weights.
    rounded_between: bool = False,
) -> Expected:
    """What the chosen experts make of x [M, H], summed by their weights in float32.

    The hidden activations between the two products are bfloat16; all else stays float32.
    """
    weights = maybe_rounded(weights) if rounded_between else weights
    x = x if isinstance(x, Expected) else exact(x)
    tokens, hidden = x.value.shape
    results = Expected(*(x.value.new_zeros(tokens, experts.shape[1], hidden) for _ in "ve"))
    for expert in experts.unique().tolist():
        token, place = (experts == expert).nonzero(as_tuple=True)
        rows = Expected(x.value[token], x.error[token])
        got = _expert(rows, layer, expert, rounded_between)
        results.value[token, place], results.error[token, place] = got.value, got.error
    return combined(results, weights)


def _expert(x: Expected, layer: ExpertsLayer, expert: int, rounded_between: bool) -> Expected:
    gate_up_bias, down_bias = (
        None if bias is None else bias[expert] for bias in (layer.gate_up_bias, layer.down_bias)
    )
    gate_up, down = (decode(part_of(weight, expert)) for weight in (layer.gate_up, layer.down))
    both = accumulated(x, gate_up, gate_up_bias)
    both = maybe_rounded(both) if rounded_between else both
    if layer.activation.halves == 1:
        inner = squared(both)
    else:
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
    roundings = 1 if residual is None else 3
    normed, sums = _normed(x, residual, weight, epsilon, roundings)
    return (normed,) if residual is None else (normed, sums)


def _normed(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    roundings: int,  # to bfloat16, of what the result is made of
) -> tuple[Expected, Expected]:
    sums = x.to(torch.float64)
    if residual is not None:
        sums = sums + residual.to(torch.float64)
    inverse = (sums.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    value = sums * inverse * weight.to(torch.float64)
    relative = roundings * _BF16_ROUNDING + (x.shape[1] / 2 + _NORM_ADDITIONS) * _ADDITION
    return Expected(value, value.abs() * relative + 2.0**-126), Expected(
        sums, torch.zeros_like(sums)
    )


def normed_linear_oracle(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: torch.Tensor,  # its weight
    epsilon: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    rounded_between: bool = False,  # as in `moe_oracle`
) -> tuple[Expected, Expected]:
    """The product of the norm of x + residual, rounded to bfloat16 once, and the sum itself."""
    if rounded_between:
        normed, sums = _normed(x, residual, norm, epsilon, 4)
        return accumulated(normed, weight, bias), sums
    normed, sums = _normed(x, residual, norm, epsilon, 0)
    return accumulated(rounded(normed), weight, bias), sums


def normed_mlp_oracle(
    x: torch.Tensor, residual: torch.Tensor | None, layer: NormedMlpLayer
) -> tuple[Expected, Expected]:
    """What the MLP makes of the norm of x + residual, and that sum.

    The norm is rounded to bfloat16 once, and so is the activation.
    """
    exact_norm, sums = _normed(x, residual, layer.norm.weight, layer.norm.epsilon, 0)
    both = accumulated(rounded(exact_norm), decode(layer.gate_up.weight), None)
    gate, up = (
        Expected(*halves)
        for halves in zip(both.value.chunk(2, -1), both.error.chunk(2, -1), strict=True)
    )
    inner = activated(gate, up, *constants(Activation("silu")))
    return accumulated(rounded(inner), decode(layer.down.weight), None), sums


def constants(activation: Activation) -> tuple[float, float, float]:
    """The alpha, limit and shift of `activated`."""
    silu = activation.name == "silu"
    return (1.0, math.inf, 0.0) if silu else (activation.alpha, activation.limit, 1.0)


def normed_experts_oracle(
    x: torch.Tensor, residual: torch.Tensor | None, layer: NormedExpertsLayer
) -> tuple[Expected, Expected]:
    """What the experts make of the norm of x + residual, and that sum.

    The norm is rounded to bfloat16 once, and so are the logits.

    Raises:
        ValueError: a token's choice is not the same for all logits that a right kernel may have.
    """
    exact_norm, sums = _normed(x, residual, layer.norm.weight, layer.norm.epsilon, 0)
    normed, gate, router = rounded(exact_norm), layer.gate.weight, layer.experts.router
    assert isinstance(gate, torch.Tensor)
    logits = rounded(accumulated(normed, gate.to(torch.float64), layer.gate_bias))
    experts, weights = routing_oracle(logits.value, router)
    _refuse_doubt(logits, experts)
    # Each exponential, or sigmoid, is off by this factor at most, and so is what it is divided by.
    off = torch.expm1(2 * logits.error.nan_to_num(0.0).amax(-1, keepdim=True))
    weights = Expected(weights.value, weights.error * (1 + off) + weights.value.abs() * off)
    if router.always:
        experts, weights = _with_shared(normed, experts, weights, layer)
    return moe_oracle(normed, experts, weights, layer.experts), sums


def _with_shared(
    normed: Expected, experts: torch.Tensor, weights: Expected, layer: NormedExpertsLayer
) -> tuple[torch.Tensor, Expected]:
    """The same choice and the experts that every token takes."""
    router, tokens = layer.experts.router, len(experts)
    numbers = torch.arange(router.always, device=experts.device) + router.experts
    value, error = (weights.value.new_full((tokens, 1), fill) for fill in (1.0, 0.0))
    if layer.shared_gate is not None:
        logit = rounded(accumulated(normed, layer.shared_gate[None].to(torch.float64), None))
        value = torch.sigmoid(logit.value)
        # A sigmoid rises by a quarter of its argument at most; else as in `routing_weights`.
        error = logit.error / 4 + value * (2 * logit.value.abs() + 16) * _ROUNDING
    value, error = (part.expand(-1, router.always) for part in (value, error))
    return (
        torch.cat([experts, numbers.expand(tokens, -1)], 1),
        Expected(torch.cat([weights.value, value], 1), torch.cat([weights.error, error], 1)),
    )


def _refuse_doubt(logits: Expected, experts: torch.Tensor) -> None:
    """Scores rise with their logits, corrections apart; of equal ones the lower number is taken."""
    value, error = logits.value, logits.error
    chosen, chosen_error = value.gather(1, experts)[..., None], error.gather(1, experts)[..., None]
    lead = (chosen - value[:, None]) - (chosen_error + error[:, None])
    equal = (chosen == value[:, None]) & (chosen_error + error[:, None] == 0)
    unchosen = torch.ones_like(value, dtype=torch.bool).scatter(1, experts, False)[:, None]
    doubtful = unchosen & ~(lead > 0) & ~equal & ~value.isnan().any(-1)[:, None, None]
    if doubtful.any():
        tokens = doubtful.flatten(1).any(-1).nonzero().flatten().tolist()
        raise ValueError(f"rounding decides which experts tokens {tokens} take")
