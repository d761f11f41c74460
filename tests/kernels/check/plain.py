"""The kernels' work in plain PyTorch, to try the gate on: right, or wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import ExpertsLayer
from spark_prof.kernels.check.cases import Linear, Moe
from spark_prof.kernels.check.inputs import Weight, decode
from spark_prof.kernels.check.oracles import RoutingRule, constants

_USUAL = RoutingRule()


def plain_linear(
    change: Callable[[torch.Tensor], torch.Tensor] = lambda decoded: decoded,
    after: Callable[[torch.Tensor], torch.Tensor] = lambda result: result,
    biased: bool = True,
) -> Linear:
    """A linear layer; `change` is done to the decoded weight, `after` to the float32 result."""

    def pack(weight: Weight) -> Callable[..., object]:
        decoded = change(decode(weight))

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            # In float64, as float32 cannot hold all that a tensor core's exact products are.
            sums = (x.double() @ decoded.T).float()
            if bias is not None and biased:
                sums = sums + bias.float()
            return out.copy_(after(sums).to(torch.bfloat16))

        return compute

    return pack


def plain_route(
    logits: torch.Tensor, top_k: int, rule: RoutingRule = _USUAL
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chosen experts and their weights, in float32; NaN counts as largest."""
    values = logits.float()
    scores = torch.sigmoid(values) if rule.sigmoid else values
    choice = scores if rule.correction is None else scores + rule.correction
    experts = choice.sort(stable=True, dim=-1, descending=True).indices[:, :top_k]
    parts = scores if rule.sigmoid else torch.exp(values - values.amax(-1, keepdim=True))
    weights = parts.gather(1, experts)
    if rule.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    elif not rule.sigmoid:
        weights = weights / parts.sum(-1, keepdim=True)
    return experts.int(), weights * rule.scale


@dataclass(frozen=True)
class Wrong:
    """What a block of experts does wrong.

    Attributes:
        gate_is_up: it takes the gate's rows for those of up.
        no_limit: it leaves the limit out.
        no_shift: it leaves out the 1 that SwiGLU adds to up.
        alpha_one: it takes SiLU for SwiGLU's sigmoid.
        no_biases: it leaves both biases out.
        dropped: a (token, place) whose expert does not count.
        equal_weights: all experts count the same.
    """

    gate_is_up: bool = False
    no_limit: bool = False
    no_shift: bool = False
    alpha_one: bool = False
    no_biases: bool = False
    dropped: tuple[int, int] | None = None
    equal_weights: bool = False


def plain_moe(wrong: Wrong = Wrong()) -> Moe:
    """A block of experts in float32, its hidden activations rounded to bfloat16."""

    def pack(layer: ExpertsLayer) -> Callable[..., object]:
        gate_up, down = decode(layer.gate_up), decode(layer.down)
        alpha, limit, shift = constants(layer.activation)
        alpha = 1.0 if wrong.alpha_one else alpha
        limit = torch.inf if wrong.no_limit else limit
        shift = 0.0 if wrong.no_shift else shift

        def expert(x: torch.Tensor, number: int) -> torch.Tensor:
            both = (gate_up[number] @ x.double()).float()
            if layer.gate_up_bias is not None and not wrong.no_biases:
                both = both + layer.gate_up_bias[number].float()
            gate, up = reversed(both.chunk(2)) if wrong.gate_is_up else both.chunk(2)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            inner = gate * torch.sigmoid(alpha * gate) * (up + shift)
            result = (down[number] @ inner.to(torch.bfloat16).double()).float()
            if layer.down_bias is not None and not wrong.no_biases:
                result = result + layer.down_bias[number].float()
            return result

        def compute(x: torch.Tensor, logits: torch.Tensor, out: torch.Tensor) -> object:
            top_k = layer.router.top_k
            experts, weights = plain_route(logits, top_k)
            if wrong.equal_weights:
                weights = torch.full_like(weights, 1 / top_k)
            if wrong.dropped is not None:
                weights[wrong.dropped] = 0
            total = torch.zeros(x.shape)
            for token, chosen in enumerate(experts.tolist()):
                for place, number in enumerate(chosen):
                    total[token] += weights[token, place] * expert(x[token], number)
            return out.copy_(total.to(torch.bfloat16))

        return compute

    return pack
