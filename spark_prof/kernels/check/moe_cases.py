"""The cases that a block of experts has to pass, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.check.activations import Layout, Tokens, make_activations
from spark_prof.kernels.check.guarded import Guarded, surrounded
from spark_prof.kernels.check.oracles import ExactExperts, moe_oracle, routing_oracle
from spark_prof.kernels.check.repeated import first_difference
from spark_prof.kernels.check.routing_cases import Logits, make_logits
from spark_prof.kernels.check.verdict import Judge, Judgement, judge
from spark_prof.kernels.check.weights import Bf16, Recipe, make_weight
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import GlobalScale, MxFp4, NvFp4


@dataclass(frozen=True)
class Layer:
    """A layer's experts, as a checkpoint has them.

    Attributes:
        gate_up: [E, 2 I, H], gate rows before up rows.
        down: [E, H, I].
        gate_up_bias: bfloat16 [E, 2 I] or None.
        down_bias: bfloat16 [E, H] or None.
        activation: `silu`, or `swiglu` of gpt-oss with alpha 1.702 and limit 7.
    """

    gate_up: NvFp4 | MxFp4 | Bf16
    down: NvFp4 | MxFp4 | Bf16
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    activation: Literal["silu", "swiglu"]


Moe = Callable[[Layer], Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor], object]]
"""Packs a layer; what it returns computes x, logits, top_k, out: it writes out [M, H]."""


@dataclass(frozen=True)
class Sizes:
    """Of a layer: experts, how many a token takes, its width H and the width I within an expert."""

    experts: int
    top_k: int
    hidden: int
    inner: int


SMALL = Sizes(8, 3, 192, 96)
"""1.5 times 128 wide, and 0.75 times within."""
_MOST_TOKENS = 16


@dataclass(frozen=True)
class MoeCase:
    """What the experts do.

    Attributes:
        activation: `silu` without biases, or `swiglu` with them.
        x: what is special about the activations.
        may_refuse: whether a KernelError is an answer too.
    """

    format: Literal["nvfp4", "mxfp4", "bf16"]
    sizes: Sizes
    tokens: int
    activation: Literal["silu", "swiglu"] = "silu"
    logits: Logits = "plain"
    recipe: Recipe = "plain"
    x: Tokens = "plain"
    layout: Layout = "contiguous"
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `mxfp4, swiglu, 3 tokens, 3 of 8 experts, 192 x 96`."""
        sizes = self.sizes
        words = [self.format, self.activation, f"{self.tokens} tokens"]
        words += [f"{sizes.top_k} of {sizes.experts} experts", f"{sizes.hidden} x {sizes.inner}"]
        words += [f"logits: {self.logits}"] if self.logits != "plain" else []
        words += [f"weights: {self.recipe}"] if self.recipe != "plain" else []
        words += [f"activations: {self.x}"] if self.x != "plain" else []
        words += [f"layout: {self.layout}"] if self.layout != "contiguous" else []
        return ", ".join(words)


def moe_cases(kind: Literal["nvfp4", "mxfp4", "bf16"]) -> Iterator[MoeCase]:
    """The small cases of a format: each number of tokens and each edge."""
    for tokens in range(1, _MOST_TOKENS + 1):
        yield MoeCase(kind, SMALL, tokens, "swiglu" if tokens % 2 else "silu")
    for activation in ("silu", "swiglu"):
        yield MoeCase(kind, SMALL, 12, activation, "the same experts")
        yield MoeCase(kind, SMALL, 9, activation, x="NaN and infinity")
        yield MoeCase(kind, Sizes(64, 3, 192, 96), 3, activation)
        yield MoeCase(kind, SMALL, 4, activation, recipe="zero blocks")
        yield MoeCase(kind, SMALL, 4, activation, recipe="one element a row")
    yield MoeCase(kind, SMALL, 3, "silu", "far apart")
    yield MoeCase(kind, SMALL, 3, "silu", "ties")
    yield MoeCase(kind, SMALL, 3, "swiglu", x="zeros")
    yield MoeCase(kind, SMALL, 3, "silu", recipe="NaN scales", may_refuse=True)
    if kind == "nvfp4":
        yield MoeCase(kind, SMALL, 2, "swiglu", recipe="a global scale for each shard")
    for layout in ("rows apart", "columns apart"):
        yield MoeCase(kind, SMALL, 3, "swiglu", layout=layout, may_refuse=True)


def run_moe_case(
    case: MoeCase,
    moe: Moe,
    device: str,
    judged: Judge = judge,
    rounded_between: bool = False,
) -> Judgement:
    """Runs a case: the result within its bound, nothing beside it written, and again equal bits.

    Args:
        judged: holds the result against the exact one.
        rounded_between: whether a kernel may round to bfloat16 in more places (`moe_oracle`).
    """
    sizes = case.sizes
    layer = make_layer(case, device)
    x = surrounded(make_activations(case.x, case.tokens, sizes.hidden, 2, device, case.layout))
    logits = surrounded(
        make_logits(case.logits, case.tokens, sizes.experts, torch.bfloat16, device)
    )
    out, again = (Guarded((case.tokens, sizes.hidden), torch.bfloat16, device) for _ in range(2))
    try:
        compute = moe(layer)
        compute(x, logits, sizes.top_k, out.tensor)
        compute(x, logits, sizes.top_k, again.tensor)
    except KernelError as error:
        return Judgement(None, "" if case.may_refuse else f"refused: {error}")
    beside = out.problem()
    if beside:
        return Judgement(None, beside)
    experts, weights = routing_oracle(logits, sizes.top_k)
    expected = moe_oracle(x, experts, weights, exact_experts(layer), rounded_between)
    judgement = judged(out.tensor, expected)
    if judgement.detail:
        return judgement
    differs = first_difference(
        lambda to: compute(x, logits, sizes.top_k, to), out.tensor, again.tensor
    )
    return Judgement(judgement.used, differs)


def exact_experts(layer: Layer) -> ExactExperts:
    """The layer for the oracle."""
    swiglu = layer.activation == "swiglu"
    return ExactExperts(
        lambda expert: _matrix(layer.gate_up, expert).decode(),
        lambda expert: _matrix(layer.down, expert).decode(),
        layer.gate_up_bias,
        layer.down_bias,
        alpha=1.702 if swiglu else 1.0,
        limit=7.0 if swiglu else torch.inf,
        shift=1.0 if swiglu else 0.0,
    )


def make_layer(case: MoeCase, device: str) -> Layer:
    """The layer of a case; the same for the same case."""
    sizes = case.sizes
    up_shape = (sizes.experts, 2 * sizes.inner, sizes.hidden)
    down_shape = (sizes.experts, sizes.hidden, sizes.inner)
    gate_up = make_weight(case.format, case.recipe, up_shape, 1, device)
    down = make_weight(case.format, case.recipe, down_shape, 2, device)
    assert isinstance(gate_up, NvFp4 | MxFp4 | Bf16)
    assert isinstance(down, NvFp4 | MxFp4 | Bf16)
    gate_up_bias, down_bias = (
        make_activations("plain", sizes.experts, rows, 3, device)
        for rows in (2 * sizes.inner, sizes.hidden)
    )
    if case.activation == "silu":
        return Layer(gate_up, down, None, None, "silu")
    return Layer(gate_up, down, gate_up_bias, down_bias, "swiglu")


def _matrix(weight: NvFp4 | MxFp4 | Bf16, expert: int) -> NvFp4 | MxFp4 | Bf16:
    """The weight of one expert."""
    if isinstance(weight, Bf16):
        return Bf16(weight.values[expert])
    if isinstance(weight, MxFp4):
        return MxFp4(weight.packed[expert], weight.scales[expert])
    value = weight.global_scale.value
    value = value[expert] if value.ndim == 3 else value
    scale = GlobalScale(value, weight.global_scale.convention)
    return NvFp4(weight.packed[expert], weight.scales[expert], scale)
