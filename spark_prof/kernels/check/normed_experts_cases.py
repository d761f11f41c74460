"""The cases of a norm, a router's matrix and experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import torch

from spark_prof.kernels.candidate import (
    Format,
    KernelCandidate,
    LinearLayer,
    NormedExpertsLayer,
    NormLayer,
)
from spark_prof.kernels.check.cases import SMALL_EXPERTS, Posed, Results
from spark_prof.kernels.check.inputs import (
    Layout,
    Logits,
    Sizes,
    Tokens,
    make_activations,
    make_layer,
    make_logits,
    surrounded,
)
from spark_prof.kernels.check.oracles import norm_oracle, normed_experts_oracle
from spark_prof.kernels.check.verdict import Judge, Judgement, judge


@dataclass(frozen=True)
class NormedExpertsCase:
    """What is normed, and what the experts then do."""

    format: Format
    sizes: Sizes
    tokens: int
    activation: Literal["silu", "swiglu"] = "silu"  # `silu` without biases, or `swiglu` with them
    # About what the matrix makes, plain ones with a lead of the chosen experts, so that no rounding
    # but that of the logits decides: ties lie so near to numbers of bfloat16 that it makes them.
    logits: Logits = "plain"
    x: Tokens = "plain"
    layout: Layout = "contiguous"
    residual: bool = True
    epsilon: float = 1e-5
    always: int = 0  # of the experts, the last ones, which every token takes besides
    gated: bool = False  # with a weight that is made of the token
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `mxfp4, swiglu, 3 tokens, 3 of 8 experts, 192 x 96, residual`."""
        sizes = self.sizes
        words = [self.format, self.activation, f"{self.tokens} tokens"]
        words += [f"{sizes.top_k} of {sizes.experts} experts", f"{sizes.hidden} x {sizes.inner}"]
        special = {"logits": self.logits, "activations": self.x, "layout": self.layout}
        words += [f"{n}: {w}" for n, w in special.items() if w not in ("plain", "contiguous")]
        words += [f"epsilon {self.epsilon:g}"] * (self.epsilon != 1e-5)
        words += [f"{self.always} taken always"] * bool(self.always) + ["gated"] * self.gated
        return ", ".join(words + ["residual"] * self.residual)

    def pose(self, _candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device."""
        x_shape = (self.tokens, self.sizes.hidden)
        x = surrounded(make_activations(self.x, *x_shape, 2, device, self.layout))
        residual = None
        if self.residual:
            residual = surrounded(make_activations("plain", *x_shape, 5, device, self.layout))
        layer = self._layer(x, residual, device)

        def judged(results: Results, judged: Judge) -> Judgement:
            expected, stream = normed_experts_oracle(x, residual, layer)
            judgement = judge(results[1], stream)
            return judgement if judgement.detail else judged(results[0], expected)

        kinds = ((x_shape, torch.bfloat16),) * 2
        return Posed(layer, (x, residual), kinds, judged)

    def _layer(
        self, x: torch.Tensor, residual: torch.Tensor | None, device: str
    ) -> NormedExpertsLayer:
        top_k, hidden = self.sizes.top_k, self.sizes.hidden
        count = self.sizes.experts - self.always
        norm = make_activations("with a common offset", 1, hidden, 6, device)[0]
        logits = make_logits(self.logits, self.tokens, count, torch.float64, "cpu")
        if self.logits == "ties":
            logits += 2.5
        else:
            logits.scatter_add_(1, logits.topk(top_k).indices, torch.ones_like(logits))
        bias = None
        if self.activation == "swiglu":
            bias = make_activations("plain", 1, count, 7, device)[0]
            logits -= bias.cpu()
        # The smallest matrix that makes these logits of the norm.
        normed = norm_oracle(x, residual, norm, self.epsilon)[0].value.cpu().nan_to_num(0.0)
        gate = (torch.linalg.pinv(normed, rtol=1e-3) @ logits).T.to(torch.bfloat16)
        name = "model.layers.0"
        experts = make_layer(self.format, self.sizes, self.activation, device)
        if self.always:
            choice = replace(experts.router, experts=count, always=self.always, scale=1.75)
            experts = replace(experts, router=choice)
        shared_gate = None
        if self.gated:
            shared_gate = make_activations("plain", 1, hidden, 8, device)[0] / hidden**0.5
        return NormedExpertsLayer(
            name,
            NormLayer(f"{name}.post_attention_layernorm", norm, self.epsilon),
            LinearLayer(f"{name}.mlp.router", "router", gate.contiguous().to(device)),
            bias,
            experts,
            shared_gate,
        )


_FEW = range(1, 17)
_SHAPES: dict[str, tuple[tuple[Sizes, Literal["silu", "swiglu"]], ...]] = {
    "cpu": ((Sizes(4, 2, 2880, 32), "swiglu"),),
    "cuda": ((Sizes(32, 4, 2880, 2880), "swiglu"), (Sizes(128, 8, 2048, 768), "silu")),
}
"""Layers of gpt-oss-20b and Qwen3-30B-A3B; on the CPU's emulator, where they take long, one of that
width."""


def normed_experts_cases(candidate: KernelCandidate, device: str) -> Iterator[NormedExpertsCase]:
    """Each format, number of tokens and edge, many experts, and widths of models."""
    for kind in candidate.formats:
        for tokens in _FEW:
            yield NormedExpertsCase(kind, SMALL_EXPERTS, tokens, "swiglu" if tokens % 2 else "silu")
        for activation in ("silu", "swiglu"):
            yield NormedExpertsCase(kind, SMALL_EXPERTS, 12, activation, "the same experts")
            yield NormedExpertsCase(kind, SMALL_EXPERTS, 5, activation, "ties")
            yield NormedExpertsCase(kind, SMALL_EXPERTS, 9, activation, x="NaN and infinity")
            for x in ("zeros", "with a common offset"):
                yield NormedExpertsCase(kind, SMALL_EXPERTS, 5, activation, x=x)
            for tokens in (1, 5):
                yield NormedExpertsCase(kind, SMALL_EXPERTS, tokens, activation, residual=False)
        yield NormedExpertsCase(kind, SMALL_EXPERTS, 4, epsilon=0.5)
        for layout in ("rows apart", "columns apart"):
            yield NormedExpertsCase(kind, SMALL_EXPERTS, 3, layout=layout, may_refuse=True)
        # Of many experts a block takes two or four, the last one fewer.
        for tokens in (1, 2, 3, 7):
            yield NormedExpertsCase(kind, Sizes(66, 3, 192, 32), tokens, "swiglu")
        yield NormedExpertsCase(kind, Sizes(512, 10, 64, 32), 3)
        for (always, gated), tokens in product(((1, True), (2, False)), (1, 4, 16)):
            sizes = replace(SMALL_EXPERTS, experts=SMALL_EXPERTS.experts + always)
            yield NormedExpertsCase(kind, sizes, tokens, always=always, gated=gated)
        for (sizes, activation), tokens in product(_SHAPES[device], (1, 2, 4, 16)):
            if device == "cuda" or tokens < 4:
                yield NormedExpertsCase(kind, sizes, tokens, activation)
