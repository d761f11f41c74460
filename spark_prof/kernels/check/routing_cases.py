"""The cases that routing has to pass, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.oracles import routing_oracle
from spark_prof.kernels.check.verdict import Judgement, judge, same_bits

__all__ = ["Logits", "Route", "RoutingCase", "make_logits", "routing_cases", "run_routing_case"]

Logits = Literal["plain", "the same experts", "ties", "far apart", "masked", "NaN"]
"""Normal numbers; all tokens alike; few different values; from -300 to 300; -infinity for half of
the experts; a NaN in the first token, which may then take any experts that there are."""
Route = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""From logits [M, E] and k to experts int32 [M, k] and weights float32 [M, k]."""


@dataclass(frozen=True)
class RoutingCase:
    """What is routed.

    Attributes:
        experts: how many there are.
        top_k: how many of them a token takes.
        tokens: how many tokens.
        logits: what is special about the logits.
        dtype: of the logits.
    """

    experts: int
    top_k: int
    tokens: int
    logits: Logits = "plain"
    dtype: torch.dtype = torch.bfloat16

    @property
    def label(self) -> str:
        """For messages: `3 tokens, 4 of 32 experts, logits: ties`."""
        words = [f"{self.tokens} tokens", f"{self.top_k} of {self.experts} experts"]
        words += [f"logits: {self.logits}"] if self.logits != "plain" else []
        return ", ".join([*words, str(self.dtype).removeprefix("torch.")])


def make_logits(
    kind: Logits, tokens: int, experts: int, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Logits [tokens, experts]; the same for the same arguments."""
    generator = torch.Generator().manual_seed(experts)
    values = torch.randn(tokens, experts, generator=generator) * 2
    if kind == "the same experts":
        values = values[:1].repeat(tokens, 1)
    elif kind == "ties":
        values = values.round().clamp(-1, 1)
    elif kind == "far apart":
        values *= 75
    elif kind == "masked":
        values[:, 1::2] = -torch.inf
    elif kind == "NaN":
        values[0, experts // 2] = torch.nan
    return values.to(dtype).to(device)


def routing_cases() -> Iterator[RoutingCase]:
    """The experts of real models, each number of tokens, and each edge."""
    for tokens in range(1, 17):
        yield RoutingCase(32, 4, tokens)
    for experts, top_k in ((128, 4), (128, 8), (512, 10), (8, 2), (8, 8), (6, 1)):
        yield RoutingCase(experts, top_k, 3)
    for logits in ("the same experts", "ties", "far apart", "masked", "NaN"):
        yield RoutingCase(32, 4, 5, logits)
    yield RoutingCase(512, 10, 2, "ties")
    yield RoutingCase(128, 8, 4, dtype=torch.float32)


def run_routing_case(case: RoutingCase, route: Route, device: str) -> Judgement:
    """Runs a case: the experts equal, largest logit first; the weights within their bound."""
    logits = make_logits(case.logits, case.tokens, case.experts, case.dtype, device)
    experts, weights = route(logits, case.top_k)
    expected, expected_weights = routing_oracle(logits, case.top_k)
    if tuple(experts.shape) != tuple(expected.shape):
        return Judgement(None, f"experts of shape {tuple(experts.shape)}")
    outside = int(((experts < 0) | (experts >= case.experts)).sum())
    if outside:
        return Judgement(None, f"{outside} experts that there are not")
    told = ~logits.isnan().any(-1)
    wrong = (experts.to(torch.int64) != expected)[told].any(-1).nonzero()
    if wrong.numel():
        token = int(told.nonzero()[wrong[0, 0], 0])
        return Judgement(
            None, f"token {token}: {experts[token].tolist()}, expected {expected[token].tolist()}"
        )
    allowed = Expected(expected_weights.value[told], expected_weights.error[told])
    judgement = judge(weights[told], allowed)
    if judgement.detail:
        return judgement
    again = route(logits, case.top_k)
    same = same_bits(experts, again[0]) and same_bits(weights, again[1])
    return Judgement(judgement.used, "" if same else "a second run gives other bits")
