"""The cases of a norm and the matrix behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import (
    Format,
    KernelCandidate,
    LinearLayer,
    NormedLinearLayer,
    NormLayer,
)
from spark_prof.kernels.check.cases import SMALL, Posed, Results, special
from spark_prof.kernels.check.inputs import (
    Layout,
    Recipe,
    Tokens,
    decode,
    make_activations,
    make_weight,
    surrounded,
)
from spark_prof.kernels.check.oracles import normed_linear_oracle
from spark_prof.kernels.check.verdict import Judge, Judgement, judge


@dataclass(frozen=True)
class NormedCase:
    """What is normed, and what it is multiplied with."""

    format: Format
    shape: tuple[int, int]
    tokens: int
    residual: bool = True
    recipe: Recipe = "plain"
    x: Tokens = "plain"
    layout: Layout = "contiguous"
    bias: bool = False
    epsilon: float = 1e-5
    norm: torch.dtype = torch.bfloat16  # of its weight
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `nvfp4, 3 tokens, 48 x 448, residual, bias`."""
        words = [self.format, f"{self.tokens} tokens", f"{self.shape[0]} x {self.shape[1]}"]
        words += special(weights=self.recipe, activations=self.x, layout=self.layout)
        words += [f"epsilon {self.epsilon:g}"] * (self.epsilon != 1e-5)
        words += ["a norm of float32"] * (self.norm == torch.float32)
        return ", ".join(words + ["residual"] * self.residual + ["bias"] * self.bias)

    def pose(self, candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device; somebody's own kernel may round wherever one of vLLM's ends."""
        rows, columns = self.shape
        x_shape = (self.tokens, columns)
        weight = make_weight(self.format, self.recipe, self.shape, 1, device)
        x = surrounded(make_activations(self.x, *x_shape, 2, device, self.layout))
        residual = surrounded(make_activations("plain", *x_shape, 5, device))
        if not self.residual:
            residual = None
        bias = make_activations("plain", 1, rows, 3, device)[0] if self.bias else None
        norm = make_activations("plain", 1, columns, 4, device)[0].to(self.norm)
        layer = NormedLinearLayer(
            "model.layers.0",
            NormLayer("model.layers.0.input_layernorm", norm, self.epsilon),
            LinearLayer("model.layers.0.self_attn.qkv_proj", "qkv", weight),
        )

        def judged(results: Results, judged: Judge) -> Judgement:
            expected, stream = normed_linear_oracle(
                x, residual, norm, self.epsilon, decode(weight), bias, candidate.is_custom
            )
            judgement = judge(results[1], stream)
            return judgement if judgement.detail else judged(results[0], expected)

        kinds = (((self.tokens, rows), torch.bfloat16), (x_shape, torch.bfloat16))
        return Posed(layer, (x, residual, bias), kinds, judged)


_MOST_TOKENS = 16


def normed_cases(candidate: KernelCandidate, _device: str) -> Iterator[NormedCase]:
    """Each format, number of tokens and edge, and widths of models."""
    for kind in candidate.formats:
        for tokens in range(1, _MOST_TOKENS + 1):
            yield NormedCase(kind, SMALL, tokens, bias=tokens % 3 == 1)
        yield NormedCase(kind, SMALL, 1, residual=False)
        yield NormedCase(kind, SMALL, 3, residual=False, bias=True)
        yield NormedCase(kind, SMALL, 4, epsilon=0.5)
        yield NormedCase(kind, SMALL, 4, norm=torch.float32)
        yield NormedCase(kind, SMALL, 4, recipe="one element a row")
        for x in ("NaN and infinity", "zeros", "with a common offset"):
            yield NormedCase(kind, SMALL, 5, x=x)
        yield NormedCase(kind, SMALL, 5, layout="rows apart")
        for shape, tokens in (
            ((32, 2880), 1),
            ((48, 1856), 4),
            ((208, 64), 2),
            ((224, 448), 3),
            ((32, 2880), 5),
        ):
            yield NormedCase(kind, shape, tokens, recipe="one element a row", bias=True)
