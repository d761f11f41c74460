"""Times mixtures of experts, from the router's logits to the combined output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.bench.expert_weights import ExpertWeights, random_experts
from spark_prof.kernels.bench.race import Contestant, clones, plan, race, reason, relative_l2
from spark_prof.kernels.bench.repeated import Output, cache_bytes
from spark_prof.kernels.bench.results import OURS, Cell, Result
from spark_prof.kernels.bench.shapes import ExpertsShape
from spark_prof.kernels.bench.vllm_experts import marlin_experts, triton_experts
from spark_prof.kernels.check.oracles import moe_oracle, routing_oracle
from spark_prof.kernels.tuning import Work

__all__ = ["EXPERTS_CONTESTANTS", "MixExperts", "race_experts"]

MixExperts = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Mixes what the copy of the experts of that number makes of x [M, H], by logits [M, E]."""

_TOLERANCE = 0.02
"""Relative L2. What lies between the products is rounded to BF16, vLLM's routing weights too."""

_LARGEST_LOGIT = 4.0


def _ours(weights: ExpertWeights, copies: int) -> MixExperts:
    from spark_prof.kernels.moe import moe
    from spark_prof.kernels.pack import Activation, pack_experts

    activation = Activation("silu")
    if weights.shape.activation == "swiglu":
        activation = Activation("swiglu", alpha=weights.alpha, limit=weights.limit)
    packed = clones(
        pack_experts(
            weights.gate_up, weights.down, weights.gate_up_bias, weights.down_bias, activation
        ),
        copies,
    )
    top_k = weights.shape.top_k
    return lambda x, logits, number: moe(x, logits, packed[number], top_k)


EXPERTS_CONTESTANTS: dict[str, Callable[[ExpertWeights, int], MixExperts]] = {
    OURS: _ours,
    "vLLM Marlin": marlin_experts,
    "vLLM Triton": triton_experts,
}
"""Who takes part: makes copies of the experts and mixes them."""


@dataclass(frozen=True)
class _Inputs:
    """Of all calls with one number of tokens.

    Attributes:
        source: what x is written from.
        x: [calls, M, H].
        logits: [calls, M, E].
        copies: of the weights.
    """

    source: torch.Tensor
    x: torch.Tensor
    logits: torch.Tensor
    copies: int

    def before(self, number: int) -> None:
        """Writes x of the call of a number."""
        self.x[number].copy_(self.source[number])

    @property
    def calls(self) -> int:
        return int(self.x.shape[0])


def race_experts(
    shape: ExpertsShape,
    tokens: Sequence[int],
    device: torch.device,
    seconds: float = 0.5,
    contestants: Sequence[str] = tuple(EXPERTS_CONTESTANTS),
) -> Iterator[Cell]:
    """Times the experts of one model with each number of tokens, as `race_dense` a weight."""
    weights = random_experts(shape, device)
    cache = cache_bytes(device)
    inputs = {count: _inputs(weights, count, cache, device) for count in tokens}
    copies = max((its.copies for its in inputs.values()), default=1)
    mixes = {name: _prepared(name, weights, copies) for name in contestants}
    references = _references(weights, list(inputs.values()))
    for (count, its), expected in zip(inputs.items(), references, strict=True):

        def error(number: int, output: Output, expected: torch.Tensor = expected) -> float:
            return relative_l2(output[0], expected[number])

        entered = [
            mix if isinstance(mix, Result) else Contestant(name, _calls(mix, its))
            for name, mix in mixes.items()
        ]
        results = race(entered, its.calls, its.before, error, _TOLERANCE, device, seconds)
        used = _mean_distinct(its.logits, shape.top_k) * weights.bytes_each
        activations = 2 * count * (2 * shape.hidden + shape.experts)
        yield Cell(
            kind="moe",
            work=Work(
                "moe",
                shape.format,
                2 * shape.intermediate,
                shape.hidden,
                count,
                shape.experts,
                shape.top_k,
            ),
            label=shape.model,
            weight_bytes=round(used),
            bytes=round(used) + activations,
            is_lm_head=False,
            results=results,
        )


def _prepared(name: str, weights: ExpertWeights, copies: int) -> MixExperts | Result:
    try:
        return EXPERTS_CONTESTANTS[name](weights, copies)
    except Exception as failure:
        return Result(name, None, None, reason(failure))


def _calls(mix: MixExperts, inputs: _Inputs) -> Callable[[int], torch.Tensor]:
    return lambda number: mix(inputs.x[number], inputs.logits[number], number % inputs.copies)


def _inputs(weights: ExpertWeights, count: int, cache: int, device: torch.device) -> _Inputs:
    """Random ones; a token's logits all differ, or contestants could rightly differ in experts."""
    shape = weights.shape
    dice = torch.Generator(device).manual_seed(count)
    expected = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** count)
    stored = shape.experts * weights.bytes_each
    planned = plan(math.ceil(expected * weights.bytes_each), cache, stored)
    size = (planned.calls, count)
    x = torch.randn((*size, shape.hidden), dtype=torch.bfloat16, device=device, generator=dice)
    order = torch.rand((*size, shape.experts), device=device, generator=dice).argsort(-1)
    steps = torch.linspace(-_LARGEST_LOGIT, _LARGEST_LOGIT, shape.experts, device=device)
    return _Inputs(x, torch.empty_like(x), steps.to(torch.bfloat16)[order], planned.copies)


def _references(weights: ExpertWeights, inputs: Sequence[_Inputs]) -> list[torch.Tensor]:
    """The exact output of all calls: [calls, M, H] for each number of tokens.

    All are computed at once, so that each expert is decoded once.
    """
    x = torch.cat([its.source.flatten(0, 1) for its in inputs])
    logits = torch.cat([its.logits.flatten(0, 1) for its in inputs])
    chosen, shares = routing_oracle(logits, weights.shape.top_k)
    exact = moe_oracle(x, chosen, shares, weights.exact()).value
    parts = exact.split([its.x.shape[0] * its.x.shape[1] for its in inputs])
    return [part.unflatten(0, its.x.shape[:2]) for part, its in zip(parts, inputs, strict=True)]


def _mean_distinct(logits: torch.Tensor, top_k: int) -> float:
    """How many experts a call reads."""
    chosen = logits.to(torch.float32).topk(top_k, -1).indices.flatten(1)
    return sum(len(call.unique()) for call in chosen) / len(chosen)
