"""What each kind of place is tried with: made-up tokens, and vLLM's own kernel for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from spark_prof.swaps.dispatch import features_of_experts
from spark_prof.swaps.points import SwapPoint

__all__ = ["COMPARED", "Work", "work_of"]

COMPARED = 4
"""Tokens with which both kernels are compared at a time."""

_TAKEN = 8.0
"""About the logits of the experts that a token shall take: so near that each has a say."""


@dataclass(frozen=True)
class Work:
    """How one place is tried.

    Attributes:
        shape: tells places of the same work from others.
        arguments: for a number of tokens and of a round.
        own: what vLLM's kernel makes of them.
        rounds: of comparing, after which every expert has had a token.
    """

    shape: tuple[Any, ...]
    arguments: Callable[[int, int], tuple[Any, ...]]
    own: Callable[..., Any]
    rounds: int = 1


def work_of(point: SwapPoint) -> Work:
    """How a place is tried, as long as its module still has vLLM's own methods."""
    module = point.module
    parameter = next(module.parameters())
    device, kind = parameter.device, torch.get_default_dtype()

    def random(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(shape[0])
        value = torch.randn(shape, generator=generator, device=device)
        return value.to(dtype or _activation_dtype(module, kind))

    if point.kind in ("experts", "choice"):
        config = module.moe_config
        features, experts = features_of_experts(module), int(config.num_experts)
        logits = getattr(config, "router_logits_dtype", None)

        top_k = int(config.experts_per_token)

        def routed(tokens: int, turn: int) -> tuple[Any, ...]:
            scores = random(tokens, experts, dtype=logits)
            # Each token is made to take the next experts: in the end all have been taken.
            first = torch.arange(tokens, device=device)[:, None] + turn * tokens
            taken = (first * top_k + torch.arange(top_k, device=device)) % experts
            scores = scores.scatter(1, taken, _TAKEN + 0.25 * scores.gather(1, taken))
            return (scores,) if point.kind == "choice" else (random(tokens, features), scores)

        own = _own_choice if point.kind == "choice" else _own_experts
        rounds = -(-experts // (top_k * COMPARED))
        return Work((features, experts), routed, lambda *given: own(module, *given), rounds)
    if point.kind == "norm":
        width = int(module.weight.shape[0])
        method = module._forward_method
        return Work((width,), lambda n, _: (random(n, width), None), lambda x, _: method(x))
    columns = _columns(module)
    apply = module.quant_method.apply
    return Work(
        (columns, *parameter.shape),
        lambda tokens, _: (random(tokens, columns), None),
        lambda x, bias: apply(module, x, bias),
    )


def _activation_dtype(module: Any, default: torch.dtype) -> torch.dtype:
    """What the model computes in, which a quantized layer's weights do not tell."""
    value = getattr(module, "params_dtype", None)
    if value is None:
        value = getattr(getattr(module, "moe_config", None), "in_dtype", None)
    if value is None and hasattr(module, "weight") and module.weight.is_floating_point():
        value = module.weight.dtype
    return value if isinstance(value, torch.dtype) else default


def _columns(module: Any) -> int:
    for name in ("input_size_per_partition", "embedding_dim", "input_size"):
        if isinstance(value := getattr(module, name, None), int):
            return value
    raise AttributeError(f"{type(module).__name__} does not say how many features it takes")


def _own_experts(runner: Any, x: torch.Tensor, logits: torch.Tensor) -> Any:
    """What vLLM's experts return for these tokens, cut to their features."""
    experts, width = runner.routed_experts, x.shape[-1]
    ensure = getattr(experts, "_ensure_moe_quant_config_init", None)
    if ensure is not None:
        ensure()
    padded = torch.nn.functional.pad(x, (0, int(runner.moe_config.hidden_dim) - width))
    if experts.quant_method.is_monolithic:
        return experts.forward_monolithic(x=padded, router_logits=logits)[:, :width]
    weights, chosen = _select(runner, padded, logits)
    return experts.forward_modular(x=padded, topk_weights=weights, topk_ids=chosen)[:, :width]


def _own_choice(runner: Any, logits: torch.Tensor) -> Any:
    states = logits.new_zeros(logits.shape[0], int(runner.moe_config.hidden_dim))
    weights, experts = _select(runner, states, logits)
    return weights, experts.to(torch.int32)


def _select(runner: Any, states: torch.Tensor, logits: torch.Tensor) -> Any:
    return runner.router.select_experts(
        hidden_states=states,
        router_logits=logits,
        topk_indices_dtype=runner.routed_experts.quant_method.topk_indices_dtype,
    )
