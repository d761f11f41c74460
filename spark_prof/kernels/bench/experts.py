"""Times mixtures of experts, from the router's logits to the combined output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from spark_prof.kernels.bench.configurations import best_config, known_config
from spark_prof.kernels.bench.expert_weights import ExpertWeights, random_experts
from spark_prof.kernels.bench.race import (
    Contestant,
    Setting,
    clones,
    largest_relative_l2,
    plan,
    prepared,
    race,
)
from spark_prof.kernels.bench.repeated import Call, Output, cache_bytes
from spark_prof.kernels.bench.results import OURS, Cell, Result
from spark_prof.kernels.bench.shapes import ExpertsShape
from spark_prof.kernels.bench.vllm_experts import MixExperts, marlin_experts, triton_experts
from spark_prof.kernels.check.oracles import moe_oracle, routing_oracle
from spark_prof.kernels.moe import (
    Activation,
    MoeConfig,
    PackedExperts,
    default_config,
    moe,
    pack_experts,
)
from spark_prof.kernels.operands import architecture, multiprocessors
from spark_prof.kernels.tuning import Work

_TOLERANCE = 0.02
"""Relative L2. What lies between the products is rounded to BF16, vLLM's routing weights too."""

_LARGEST_LOGIT = 4.0

MakeMix = Callable[[ExpertWeights, int], MixExperts]
"""Makes copies of the experts, and what mixes them."""

EXPERTS_PEERS: Mapping[str, MakeMix] = {
    "vLLM Marlin": marlin_experts,
    "vLLM Triton": triton_experts,
}

EXPERTS_CONTESTANTS = (OURS, *EXPERTS_PEERS)


@dataclass(frozen=True)
class _Inputs:
    """Of all calls with one number of tokens.

    Attributes:
        x: [calls, M, H].
        logits: [calls, M, E].
    """

    source: torch.Tensor
    x: torch.Tensor
    logits: torch.Tensor
    copies: int

    def write(self, number: int) -> None:
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
    contestants: Sequence[str] = EXPERTS_CONTESTANTS,
    tune: bool = False,
    peers: Mapping[str, MakeMix] = EXPERTS_PEERS,
    subject: str = OURS,
) -> Iterator[Cell]:
    """Times the experts of one model with each number of tokens, as `race_dense` a weight."""
    weights = random_experts(shape, device)
    cache = cache_bytes(device)
    all_inputs = {count: _inputs(weights, count, cache, device) for count in tokens}
    copies = max((inputs.copies for inputs in all_inputs.values()), default=1)
    ours = clones(_packed(weights), copies) if OURS in contestants else []
    ready = {
        name: prepared(name, partial(peers[name], weights, copies))
        for name in contestants
        if name in peers
    }
    references = _references(weights, list(all_inputs.values()))
    for (count, inputs), expected in zip(all_inputs.items(), references, strict=True):

        def error(outputs: Sequence[Output], expected: torch.Tensor = expected) -> float:
            return largest_relative_l2(outputs, expected)

        setting = Setting(inputs.calls, inputs.write, error, _TOLERANCE, device)
        work = Work(
            "moe",
            shape.format,
            2 * shape.intermediate,
            shape.hidden,
            count,
            shape.experts,
            shape.top_k,
        )
        config = default_config(shape.hidden, count, multiprocessors(device))
        entered: list[Contestant | Result] = []
        if ours:

            def call_of(config: MoeConfig, its: _Inputs = inputs) -> Call:
                return lambda number: moe(
                    its.x[number],
                    its.logits[number],
                    ours[number % copies],
                    shape.top_k,
                    config=config,
                )

            if tune:
                config = best_config(config, call_of, setting)
            else:
                config = known_config(config, work, architecture(device))
            entered.append(Contestant(OURS, call_of(config)))
        entered += [
            mix if isinstance(mix, Result) else Contestant(name, _calls(mix, inputs, copies))
            for name, mix in ready.items()
        ]
        used = round(_mean_distinct(inputs.logits, shape.top_k) * weights.bytes_each)
        yield Cell(
            kind="moe",
            work=work,
            label=shape.model,
            weight_bytes=used,
            bytes=used + 2 * count * (2 * shape.hidden + shape.experts),
            is_lm_head=False,
            results=race(entered, setting, seconds),
            config=asdict(config) if ours else {},
            subject=subject,
        )


def _packed(weights: ExpertWeights) -> PackedExperts:
    activation = Activation("silu")
    if weights.shape.activation == "swiglu":
        activation = Activation("swiglu", alpha=weights.alpha, limit=weights.limit)
    return pack_experts(
        weights.gate_up, weights.down, weights.gate_up_bias, weights.down_bias, activation
    )


def _calls(mix: MixExperts, inputs: _Inputs, copies: int) -> Call:
    return lambda number: mix(inputs.x[number], inputs.logits[number], number % copies)


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
