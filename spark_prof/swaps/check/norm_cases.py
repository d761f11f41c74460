"""The cases that a norm has to pass, and how one is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from spark_prof.kernels.check.activations import Tokens, make_activations
from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.guarded import surrounded
from spark_prof.kernels.check.repeated import first_difference
from spark_prof.kernels.check.verdict import Judgement, judge
from spark_prof.swaps.check.called import Called, run_replacement
from spark_prof.swaps.layers import NormLayer

EPSILON = 1e-5
_ROUNDING = 2.0**-8 * (1 + 2.0**-6)
"""Of bfloat16, relative, with those of the roundings after it."""
_ADDITION = 2.0**-23
_ADDITIONS_BESIDE = 64
"""Besides those of the squares: of partial sums, of epsilon, the root and three products."""


@dataclass(frozen=True)
class NormCase:
    """What is normed.

    Attributes:
        x: what is special about the activations.
    """

    tokens: int
    columns: int
    residual: bool = False
    x: Tokens = "plain"

    @property
    def label(self) -> str:
        """For messages: `3 tokens, 448 columns, residual`."""
        words = [f"{self.tokens} tokens", f"{self.columns} columns"]
        words += [f"activations: {self.x}"] if self.x != "plain" else []
        return ", ".join(words + ["residual"] * self.residual)


def norm_cases() -> Iterator[NormCase]:
    """Each number of tokens, the widths of models, and each edge."""
    for tokens in (*range(1, 17), 17, 130):
        for residual in (False, True):
            yield NormCase(tokens, 448, residual)
            yield NormCase(tokens, 448, residual, "zeros")
    for columns in (64, 128, 576, 2048, 2880, 4096, 8192):
        for residual in (False, True):
            yield NormCase(3, columns, residual)
    for x in ("NaN and infinity", "with a common offset"):
        for residual in (False, True):
            yield NormCase(9, 448, residual, x)


def run_norm_case(case: NormCase, called: Called, device: str) -> Judgement:
    """Runs a case: both results within their bounds, and again equal bits."""
    shape = (case.tokens, case.columns)
    x = surrounded(make_activations(case.x, *shape, 2, device))
    residual = surrounded(make_activations("plain", *shape, 5, device)) if case.residual else None
    weight = make_activations("plain", 1, case.columns, 3, device)[0]
    replacement = called.build(NormLayer("model.norm", weight, EPSILON))
    kinds = [(shape, x.dtype)] * (2 if case.residual else 1)

    def compute(to: torch.Tensor) -> object:
        return to.copy_(run_replacement(replacement, (x, residual), kinds)[0])

    results = run_replacement(replacement, (x, residual), kinds)
    expected = _expected(x, residual, weight)
    judged = [judge(*pair) for pair in zip(results, expected, strict=True)]
    wrong = next((judgement for judgement in judged if judgement.detail), None)
    if wrong is not None:
        return wrong
    again = torch.empty_like(results[0])
    compute(again)
    return Judgement(judged[0].used, first_difference(compute, results[0].clone(), again))


def _expected(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
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
    inverse = (sums.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    value = sums * inverse * weight.to(torch.float64)
    relative = roundings * _ROUNDING + (x.shape[1] / 2 + _ADDITIONS_BESIDE) * _ADDITION
    normed = Expected(value, value.abs() * relative + 2.0**-126)
    return (normed,) if residual is None else (normed, Expected(sums, torch.zeros_like(sums)))
