"""The cases that routing has to pass, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.check.oracles import RoutingRule, routing_oracle, routing_weights
from spark_prof.kernels.check.verdict import Judgement, judge, same_bits

Logits = Literal[
    "plain", "the same experts", "ties", "far apart", "masked", "NaN", "every expert in turn"
]
"""Normal numbers; all tokens alike; few different values; from -300 to 300; -infinity for half of
the experts; a NaN in the first token, which may then take any experts that there are; each token
another share of all experts."""
Scheme = Literal["softmax of the chosen", "softmax of all", "sigmoid", "corrected sigmoid"]
Route = Callable[[torch.Tensor, int, RoutingRule], tuple[torch.Tensor, torch.Tensor]]
"""From logits [M, E] and k to experts int32 [M, k] and weights float32 [M, k]."""

_CLOSE = 2.0**-20
"""Sigmoids, and their sums with a correction, that float32 need not tell apart."""


@dataclass(frozen=True)
class RoutingCase:
    """What is routed.

    Attributes:
        scheme: how the experts are chosen and weighed.
    """

    experts: int
    top_k: int
    tokens: int
    logits: Logits = "plain"
    dtype: torch.dtype = torch.bfloat16
    scheme: Scheme = "softmax of the chosen"

    @property
    def label(self) -> str:
        """For messages: `3 tokens, 4 of 32 experts, logits: ties`."""
        words = [f"{self.tokens} tokens", f"{self.top_k} of {self.experts} experts"]
        words += [f"logits: {self.logits}"] if self.logits != "plain" else []
        return ", ".join([*words, self.scheme, str(self.dtype).removeprefix("torch.")])

    def rule(self, device: str) -> RoutingRule:
        """The scheme for the oracle; a correction is large enough to change the choice."""
        correction = torch.linspace(0.4, -0.4, self.experts, device=device)
        return {
            "softmax of the chosen": RoutingRule(),
            "softmax of all": RoutingRule(renormalize=False),
            "sigmoid": RoutingRule(sigmoid=True, renormalize=False),
            "corrected sigmoid": RoutingRule(sigmoid=True, correction=correction, scale=2.5),
        }[self.scheme]


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
    elif kind == "every expert in turn":
        share = -(-experts // tokens)
        values += 16 * (torch.arange(experts) // share == torch.arange(tokens)[:, None])
    elif kind == "NaN":
        values[0, experts // 2] = torch.nan
    return values.to(dtype).to(device)


def routing_cases() -> Iterator[RoutingCase]:
    """The experts of real models, each number of tokens, and each edge."""
    for tokens in range(1, 17):
        yield RoutingCase(32, 4, tokens)
    for experts, top_k in ((128, 8), (512, 10), (8, 8), (6, 1)):
        yield RoutingCase(experts, top_k, 3)
    for logits in ("the same experts", "ties", "far apart", "masked", "NaN"):
        yield RoutingCase(32, 4, 5, logits)
    yield RoutingCase(512, 10, 2, "ties")
    yield RoutingCase(128, 8, 4, dtype=torch.float32)
    for scheme in ("softmax of all", "sigmoid", "corrected sigmoid"):
        yield RoutingCase(128, 6, 5, dtype=torch.float32, scheme=scheme)
        yield RoutingCase(128, 6, 16, "far apart", dtype=torch.float32, scheme=scheme)


def run_routing_case(case: RoutingCase, route: Route, device: str) -> Judgement:
    """Runs a case: the right experts, the best first, and their weights within the bound."""
    logits = make_logits(case.logits, case.tokens, case.experts, case.dtype, device)
    rule = case.rule(device)
    experts, weights = route(logits, case.top_k, rule)
    wrong = _wrong_choice(logits, experts, case, rule)
    if wrong:
        return Judgement(None, wrong)
    told = ~logits.isnan().any(-1)
    judgement = judge(weights[told], routing_weights(logits[told], experts[told].long(), rule))
    if judgement.detail:
        return judgement
    again = route(logits, case.top_k, rule)
    same = same_bits(experts, again[0]) and same_bits(weights, again[1])
    return Judgement(judgement.used, "" if same else "a second run gives other bits")


def _wrong_choice(
    logits: torch.Tensor, experts: torch.Tensor, case: RoutingCase, rule: RoutingRule
) -> str:
    expected, _ = routing_oracle(logits, case.top_k, rule)
    if tuple(experts.shape) != tuple(expected.shape):
        return f"experts of shape {tuple(experts.shape)}, expected {tuple(expected.shape)}"
    outside = int(((experts < 0) | (experts >= case.experts)).sum())
    if outside:
        return f"{outside} experts that there are not"
    scores = rule.scores(logits)
    chosen = experts.long()
    other = chosen != expected
    if rule.sigmoid:
        other &= (scores.gather(1, chosen) - scores.gather(1, expected)).abs() > _CLOSE
    ordered = chosen.sort(dim=-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(-1)
    wrong = ((other.any(-1) | twice) & ~logits.isnan().any(-1)).nonzero()
    if not wrong.numel():
        return ""
    token = int(wrong[0, 0])
    return f"token {token}: {experts[token].tolist()}, expected {expected[token].tolist()}"
