"""The cases that a dense kernel has to pass, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from spark_prof.kernels.check.activations import Layout, Tokens, make_activations
from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.guarded import Guarded, surrounded
from spark_prof.kernels.check.oracles import linear_oracle
from spark_prof.kernels.check.repeated import first_difference
from spark_prof.kernels.check.verdict import Judge, Judgement, judge
from spark_prof.kernels.check.weights import Format, Recipe, Weight, make_weight, rows_of
from spark_prof.kernels.errors import KernelError

Linear = Callable[[Weight], Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], object]]
"""Packs a weight; what it returns computes x, bias, out: it writes out [M, N]."""

SMALL = (48, 448)
"""3 stacks of 16 rows and 3.5 times 128 columns, as 2880 is 22.5 times and 1856 14.5 times."""
_MOST_TOKENS = 16
_ROWS_AT_ONCE = 16384
"""Bounds what a large weight takes in float64."""


@dataclass(frozen=True)
class DenseCase:
    """What is multiplied with what.

    Attributes:
        x: what is special about the activations.
        may_refuse: whether a KernelError is an answer too.
    """

    format: Format
    shape: tuple[int, int]
    tokens: int
    recipe: Recipe = "plain"
    x: Tokens = "plain"
    layout: Layout = "contiguous"
    bias: bool = False
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `nvfp4, 3 tokens, 48 x 448, bias`."""
        words = [self.format, f"{self.tokens} tokens", f"{self.shape[0]} x {self.shape[1]}"]
        words += [f"weights: {self.recipe}"] if self.recipe != "plain" else []
        words += [f"activations: {self.x}"] if self.x != "plain" else []
        words += [f"layout: {self.layout}"] if self.layout != "contiguous" else []
        return ", ".join(words + ["bias"] * self.bias)


def dense_cases(kind: Format) -> Iterator[DenseCase]:
    """The small cases of a format: each number of tokens and each edge."""
    for tokens in range(1, _MOST_TOKENS + 1):
        yield DenseCase(kind, SMALL, tokens, bias=tokens % 3 == 1)
    yield DenseCase(kind, (16, 64), 1)
    yield DenseCase(kind, (208, 192), 2, "one element a row")
    yield DenseCase(kind, SMALL, 3, "zero blocks", bias=True)
    yield DenseCase(kind, SMALL, 5, "scales apart by row")
    yield DenseCase(kind, SMALL, 4, "scales apart in a row", may_refuse=True)
    yield DenseCase(kind, SMALL, 3, "NaN scales", may_refuse=True)
    if kind == "nvfp4":
        yield DenseCase(kind, SMALL, 3, "negative scales", may_refuse=True)
        yield DenseCase(kind, SMALL, 3, "a global scale for each shard", bias=True)
        yield DenseCase(kind, SMALL, 3, "a global scale that multiplies")
    for x in ("NaN and infinity", "apart", "zeros", "with a common offset"):
        yield DenseCase(kind, SMALL, 9, x=x)
    for layout in ("rows apart", "columns apart", "transposed"):
        yield DenseCase(kind, SMALL, 5, layout=layout, may_refuse=True)


def run_dense_case(
    case: DenseCase, linear: Linear, device: str, judged: Judge = judge
) -> Judgement:
    """Runs a case: the result within its bound, nothing beside it written, and again equal bits."""
    rows, columns = case.shape
    weight = make_weight(case.format, case.recipe, case.shape, 1, device)
    x = surrounded(make_activations(case.x, case.tokens, columns, 2, device, case.layout))
    bias = make_activations("plain", 1, rows, 3, device)[0] if case.bias else None
    out, again = (Guarded((case.tokens, rows), torch.bfloat16, device) for _ in range(2))
    try:
        compute = linear(weight)
        compute(x, bias, out.tensor)
        compute(x, bias, again.tensor)
    except KernelError as error:
        return Judgement(None, "" if case.may_refuse else f"refused: {error}")
    beside = out.problem()
    if beside:
        return Judgement(None, beside)
    judgement = judged(out.tensor, _expected(x, weight, bias))
    if judgement.detail:
        return judgement
    differs = first_difference(lambda to: compute(x, bias, to), out.tensor, again.tensor)
    return Judgement(judgement.used, differs)


def _expected(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> Expected:
    parts = []
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        part = rows_of(weight, rows).decode()
        parts.append(linear_oracle(x, part, None if bias is None else bias[rows]))
    return Expected(
        torch.cat([part.value for part in parts], 1), torch.cat([part.error for part in parts], 1)
    )
