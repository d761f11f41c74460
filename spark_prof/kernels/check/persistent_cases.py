"""The cases of a decoder layer between attentions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import torch

from spark_prof.kernels.candidate import (
    Candidate,
    Format,
    LayerBetweenAttentions,
    LinearLayer,
    NormedLinearLayer,
    NormLayer,
)
from spark_prof.kernels.check.cases import SMALL_EXPERTS, Posed, Results
from spark_prof.kernels.check.inputs import (
    Logits,
    Sizes,
    decode,
    make_activations,
    make_weight,
    surrounded,
)
from spark_prof.kernels.check.normed_experts_cases import NormedExpertsCase
from spark_prof.kernels.check.oracles import (
    linear_oracle,
    normed_experts_oracle,
    normed_linear_oracle,
)
from spark_prof.kernels.check.verdict import Judge, Judgement


@dataclass(frozen=True)
class PersistentCase:
    """A layer's sizes, its experts with their inputs, and its matrices."""

    experts: NormedExpertsCase
    matrices: Format  # of o and qkv
    width: int = 320  # of the heads that o takes
    rows: int = 80  # of qkv
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `bf16 320 and 80, mxfp4, swiglu, 3 tokens, 3 of 8 experts, 192 x 96`."""
        return f"{self.matrices} {self.width} and {self.rows}, {self.experts.label}"

    def pose(self, _candidate: Candidate, device: str) -> Posed:
        """The case on a device; each step is judged by what the one before it has made."""
        tokens, hidden = self.experts.tokens, self.experts.sizes.hidden
        biased = self.experts.activation == "swiglu"

        def bias(count: int, seed: int) -> torch.Tensor | None:
            return make_activations("plain", 1, count, seed, device)[0] if biased else None

        kept = (tokens, hidden)
        o = make_weight(self.matrices, "plain", (hidden, self.width), 11, device)
        qkv = make_weight(self.matrices, "plain", (self.rows, hidden), 12, device)
        seen = surrounded(make_activations(self.experts.x, tokens, self.width, 2, device))
        residual = surrounded(make_activations("plain", *kept, 5, device))
        o_bias, qkv_bias = bias(hidden, 13), bias(self.rows, 14)
        attended = linear_oracle(seen, decode(o), o_bias)
        norm = make_activations("plain", 1, hidden, 8, device)[0]
        following = NormLayer("model.layers.1.input_layernorm", norm, 1e-6)
        experts = self.experts.layer_of(attended.value.to(torch.bfloat16), residual, device)
        layer = LayerBetweenAttentions(
            "model.layers.0",
            LinearLayer("model.layers.0.self_attn.o_proj", "o", o),
            o_bias,
            experts,
            NormedLinearLayer(
                "model.layers.1",
                following,
                LinearLayer("model.layers.1.self_attn.qkv_proj", "qkv", qkv),
            ),
            qkv_bias,
        )

        def judged(results: Results, judged: Judge) -> Judgement:
            out, stream, summed, middle, made = results
            mixed, expected_middle = normed_experts_oracle(summed, residual, experts)
            last, expected_stream = normed_linear_oracle(
                made, middle, norm, following.epsilon, decode(qkv), qkv_bias
            )
            steps = (
                (summed, attended), (middle, expected_middle), (made, mixed),
                (stream, expected_stream), (out, last),
            )  # fmt: skip
            found = [judged(*step) for step in steps]
            wrong = (each for each in found if each.detail)
            return next(wrong, max(found, key=lambda each: each.used or 0.0))

        kinds = (((tokens, self.rows), torch.bfloat16), *((kept, torch.bfloat16),) * 4)
        return Posed(layer, (seen, residual), kinds, judged)


_ACTIVATIONS: dict[Format, Literal["silu", "swiglu"]] = {"mxfp4": "swiglu", "nvfp4": "silu"}
"""As of gpt-oss and of Qwen3."""
_SHAPES: dict[str, tuple[tuple[Sizes, int, int], ...]] = {
    "cpu": ((Sizes(8, 2, 2880, 32), 128, 32),),
    "cuda": ((Sizes(32, 4, 2880, 2880), 4096, 5120), (Sizes(128, 8, 2048, 768), 4096, 5120)),
}
"""Layers of gpt-oss-20b and Qwen3-30B-A3B; on the CPU's emulator, where they take long, one of that
width. With the width of the heads and the rows of qkv."""


def persistent_cases(candidate: Candidate, device: str) -> Iterator[PersistentCase]:
    """Each format and number of tokens, edges of activations and choices, and layers of models."""
    for kind, tokens in product(candidate.formats, range(1, 5)):
        for matrices in ("bf16", kind):
            small = NormedExpertsCase(kind, SMALL_EXPERTS, tokens, _ACTIVATIONS[kind])
            yield PersistentCase(small, matrices)
            for sizes, width, rows in _SHAPES[device]:
                if device == "cuda" or tokens == 3:
                    large = replace(small, sizes=sizes)
                    yield PersistentCase(large, matrices, width, rows)
    for kind in candidate.formats:
        chosen: tuple[Logits, ...] = ("the same experts", "every expert in turn")
        for logits in chosen:
            # Two blocks share a stack of NVFP4, in the emulator too: MXFP4 has even numbers.
            sizes = Sizes(64, 4, 208 if kind == "nvfp4" else 192, 96)
            case = NormedExpertsCase(kind, sizes, 4, _ACTIVATIONS[kind], logits)
            yield PersistentCase(case, kind)
        for x in ("NaN and infinity", "zeros", "with a common offset"):
            case = NormedExpertsCase(kind, SMALL_EXPERTS, 4, _ACTIVATIONS[kind], x=x)
            yield PersistentCase(case, "bf16")
        # More blocks on a GPU than o has stacks, and fewer units than warps.
        yield PersistentCase(NormedExpertsCase(kind, Sizes(8, 1, 64, 32), 2), "bf16", 64, 16)
