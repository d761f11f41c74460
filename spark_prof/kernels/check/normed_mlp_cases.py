"""The cases of a norm and a dense MLP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import (
    Format,
    KernelCandidate,
    LinearLayer,
    NormedMlpLayer,
    NormLayer,
)
from spark_prof.kernels.check.cases import Posed, Results, special
from spark_prof.kernels.check.inputs import (
    Layout,
    Recipe,
    Tokens,
    make_activations,
    make_weight,
    surrounded,
)
from spark_prof.kernels.check.oracles import normed_mlp_oracle
from spark_prof.kernels.check.verdict import Judge, Judgement, judge


@dataclass(frozen=True)
class NormedMlpCase:
    """What is normed, and the MLP of it."""

    format: Format
    sizes: tuple[int, int]  # H and I
    tokens: int
    residual: bool = True
    recipe: Recipe = "plain"
    x: Tokens = "plain"
    layout: Layout = "contiguous"
    epsilon: float = 1e-5
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `nvfp4, 3 tokens, mlp 192 x 96, residual`."""
        words = [self.format, f"{self.tokens} tokens", f"mlp {self.sizes[0]} x {self.sizes[1]}"]
        words += special(weights=self.recipe, activations=self.x, layout=self.layout)
        words += [f"epsilon {self.epsilon:g}"] * (self.epsilon != 1e-5)
        return ", ".join(words + ["residual"] * self.residual)

    def pose(self, _candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device."""
        hidden, inner = self.sizes
        x_shape = (self.tokens, hidden)
        x = surrounded(make_activations(self.x, *x_shape, 2, device, self.layout))
        residual = surrounded(make_activations("plain", *x_shape, 5, device))
        if not self.residual:
            residual = None
        name = "model.layers.0"
        gate_up = make_weight(self.format, self.recipe, (2 * inner, hidden), 1, device)
        down = make_weight(self.format, self.recipe, (hidden, inner), 3, device)
        norm = make_activations("plain", 1, hidden, 4, device)[0]
        layer = NormedMlpLayer(
            name,
            NormLayer(f"{name}.post_attention_layernorm", norm, self.epsilon),
            LinearLayer(f"{name}.mlp.gate_up_proj", "mlp", gate_up),
            LinearLayer(f"{name}.mlp.down_proj", "mlp", down),
        )

        def judged(results: Results, judged: Judge) -> Judgement:
            expected, stream = normed_mlp_oracle(x, residual, layer)
            judgement = judge(results[1], stream)
            return judgement if judgement.detail else judged(results[0], expected)

        return Posed(layer, (x, residual), ((x_shape, torch.bfloat16),) * 2, judged)


_SMALL = (192, 160)
"""H and I; with 96 within, the scales of a row of gate and of its up would be the same."""
_WIDE: dict[str, tuple[tuple[int, int], ...]] = {
    "cpu": ((4096, 32),),
    "cuda": ((4096, 14336), (2048, 6144)),
}
"""Layers of Llama-3.1-8B and Qwen3-1.7B; on the CPU's emulator one as wide."""


def normed_mlp_cases(candidate: KernelCandidate, device: str) -> Iterator[NormedMlpCase]:
    """Each format, number of tokens and edge, and widths of models."""
    for kind in candidate.formats:
        for tokens in range(1, 17):
            yield NormedMlpCase(kind, _SMALL, tokens)
        for tokens in (1, 3):
            yield NormedMlpCase(kind, _SMALL, tokens, residual=False)
        yield NormedMlpCase(kind, _SMALL, 4, epsilon=0.5)
        yield NormedMlpCase(kind, _SMALL, 4, recipe="one element a row")
        for x in ("NaN and infinity", "zeros", "with a common offset"):
            yield NormedMlpCase(kind, _SMALL, 5, x=x)
        yield NormedMlpCase(kind, _SMALL, 5, layout="rows apart")
        for sizes in _WIDE[device]:
            for tokens in (1, 8) if device == "cpu" else (1, 2, 4, 8, 16):
                yield NormedMlpCase(kind, sizes, tokens)
