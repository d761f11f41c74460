"""The cases that a kernel has to pass, by slot: what is built, what it gets, what must come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import torch

from spark_prof.kernels.candidate import (
    ActivationName,
    Format,
    KernelCandidate,
    Layer,
    LinearLayer,
    NormLayer,
    RouterLayer,
    Scoring,
)
from spark_prof.kernels.check.inputs import (
    Layout,
    Logits,
    Recipe,
    Sizes,
    Tokens,
    Weight,
    decode,
    make_activations,
    make_layer,
    make_logits,
    make_weight,
    part_of,
    surrounded,
)
from spark_prof.kernels.check.oracles import (
    Expected,
    linear_oracle,
    moe_oracle,
    norm_oracle,
    routing_oracle,
    routing_weights,
    scores_of,
)
from spark_prof.kernels.check.verdict import Judge, Judgement, judge

Kind = tuple[tuple[int, ...], torch.dtype]

Results = Sequence[torch.Tensor]

_MOST_TOKENS = 16
_CLOSE = 2.0**-20
"""Sigmoids, and their sums with a correction, that float32 need not tell apart."""
_ROWS_AT_ONCE = 16384  # bounds what a large weight takes in float64
_EPSILON = 1e-5


@dataclass(frozen=True)
class Posed:
    """A case on a device."""

    layer: Layer
    arguments: tuple[torch.Tensor | None, ...]  # of a call
    results: tuple[Kind, ...]  # what it returns
    # Holds results against what they must be; a matrix and experts by the judge given.
    judge: Callable[[Results, Judge], Judgement]
    # Which arguments a call writes to: it gets copies, which the judge has behind the results.
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class DenseCase:
    """What is multiplied with what."""

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
        words += special(weights=self.recipe, activations=self.x, layout=self.layout)
        return ", ".join(words + ["bias"] * self.bias)

    def pose(self, candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device."""
        rows, columns = self.shape
        weight = make_weight(self.format, self.recipe, self.shape, 1, device)
        x = surrounded(make_activations(self.x, self.tokens, columns, 2, device, self.layout))
        bias = make_activations("plain", 1, rows, 3, device)[0] if self.bias else None
        return Posed(
            LinearLayer(f"model.layers.0.{candidate.slot}", candidate.slot, weight),
            (x, bias),
            (((self.tokens, rows), torch.bfloat16),),
            lambda results, judged: judged(results[0], _product(x, weight, bias)),
        )


def _product(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> Expected:
    parts = []
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        part = decode(part_of(weight, rows))
        parts.append(linear_oracle(x, part, None if bias is None else bias[rows]))
    return Expected(
        torch.cat([part.value for part in parts], 1), torch.cat([part.error for part in parts], 1)
    )


@dataclass(frozen=True)
class MoeCase:
    """What the experts do."""

    format: Format
    sizes: Sizes
    tokens: int
    activation: ActivationName = "silu"  # `swiglu` with biases, the others without
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
        words += special(
            logits=self.logits, weights=self.recipe, activations=self.x, layout=self.layout
        )
        return ", ".join(words)

    def pose(self, candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device; somebody's own kernel may round wherever one of vLLM's ends."""
        sizes, tokens = self.sizes, self.tokens
        layer = make_layer(self.format, sizes, self.activation, device, self.recipe)
        x = surrounded(make_activations(self.x, tokens, sizes.hidden, 2, device, self.layout))
        logits = surrounded(make_logits(self.logits, tokens, sizes.experts, torch.bfloat16, device))

        def judged(results: Results, judged: Judge) -> Judgement:
            routed = routing_oracle(logits, layer.router)
            return judged(results[0], moe_oracle(x, *routed, layer, candidate.is_custom))

        return Posed(layer, (x, logits), (((tokens, sizes.hidden), torch.bfloat16),), judged)


Scheme = Literal["softmax of the chosen", "softmax of all", "sigmoid", "corrected sigmoid"]
_SCHEMES: dict[Scheme, tuple[bool, Scoring, float]] = {
    "softmax of the chosen": (True, "softmax", 1.0),
    "softmax of all": (False, "softmax", 1.0),
    "sigmoid": (False, "sigmoid", 1.0),
    "corrected sigmoid": (True, "sigmoid", 2.5),
}
"""Whether the weights are divided by their sum, what becomes of a logit, and the scale."""


@dataclass(frozen=True)
class RoutingCase:
    """What is routed."""

    experts: int
    top_k: int
    tokens: int
    logits: Logits = "plain"
    dtype: torch.dtype = torch.bfloat16
    scheme: Scheme = "softmax of the chosen"
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `3 tokens, 4 of 32 experts, logits: ties`."""
        words = [f"{self.tokens} tokens", f"{self.top_k} of {self.experts} experts"]
        words += special(logits=self.logits)
        return ", ".join([*words, self.scheme, str(self.dtype).removeprefix("torch.")])

    def pose(self, _candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device; a correction is large enough to change the choice."""
        logits = surrounded(make_logits(self.logits, self.tokens, self.experts, self.dtype, device))
        renormalize, scoring, scale = _SCHEMES[self.scheme]
        correction = None
        if self.scheme == "corrected sigmoid":
            correction = torch.linspace(0.4, -0.4, self.experts, device=device)
        how = (renormalize, scoring, correction, scale)
        router = RouterLayer("model.layers.0.mlp", self.experts, self.top_k, *how)
        shape = (self.tokens, self.top_k)
        return Posed(
            router,
            (logits,),
            ((shape, torch.float32), (shape, torch.int32)),
            lambda results, _: _judge_routing(logits, router, *results),
        )


def _judge_routing(
    logits: torch.Tensor, router: RouterLayer, weights: torch.Tensor, experts: torch.Tensor
) -> Judgement:
    """The right experts, the best first, and their weights within the bound."""
    outside = int(((experts < 0) | (experts >= router.experts)).sum())
    if outside:
        return Judgement(None, f"{outside} experts that there are not")
    expected, _ = routing_oracle(logits, router)
    scores = scores_of(logits, router)
    chosen = experts.long()
    other = chosen != expected
    if router.scoring == "sigmoid":
        other &= (scores.gather(1, chosen) - scores.gather(1, expected)).abs() > _CLOSE
    ordered = chosen.sort(dim=-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(-1)
    has_answer = ~logits.isnan().any(-1)
    wrong = ((other.any(-1) | twice) & has_answer).nonzero()
    if wrong.numel():
        token = int(wrong[0, 0])
        took, right = experts[token].tolist(), expected[token].tolist()
        return Judgement(None, f"token {token}: {took}, expected {right}")
    return judge(
        weights[has_answer], routing_weights(logits[has_answer], chosen[has_answer], router)
    )


@dataclass(frozen=True)
class NormCase:
    """What is normed."""

    tokens: int
    columns: int
    residual: bool = False
    x: Tokens = "plain"
    may_refuse: bool = False

    @property
    def label(self) -> str:
        """For messages: `3 tokens, 448 columns, residual`."""
        words = [f"{self.tokens} tokens", f"{self.columns} columns"]
        words += special(activations=self.x)
        return ", ".join(words + ["residual"] * self.residual)

    def pose(self, _candidate: KernelCandidate, device: str) -> Posed:
        """The case on a device."""
        shape = (self.tokens, self.columns)
        x = surrounded(make_activations(self.x, *shape, 2, device))
        residual = None
        if self.residual:
            residual = surrounded(make_activations("plain", *shape, 5, device))
        weight = make_activations("plain", 1, self.columns, 3, device)[0]

        def judged(results: Results, _: Judge) -> Judgement:
            expected = norm_oracle(x, residual, weight, _EPSILON)
            judgements = [judge(*pair) for pair in zip(results, expected, strict=True)]
            return next((judgement for judgement in judgements if judgement.detail), judgements[0])

        kinds = ((shape, torch.bfloat16),) * (2 if self.residual else 1)
        return Posed(NormLayer("model.norm", weight, _EPSILON), (x, residual), kinds, judged)


Case = DenseCase | MoeCase | RoutingCase | NormCase


def special(**fields: str) -> list[str]:
    """What is special about a case, of its inputs by name."""
    return [
        f"{name}: {kind}" for name, kind in fields.items() if kind not in ("plain", "contiguous")
    ]


SMALL = (48, 448)
"""3 stacks of 16 rows and 3.5 times 128 columns, as 2880 is 22.5 times and 1856 14.5 times."""
SMALL_EXPERTS = Sizes(8, 3, 192, 96)
"""1.5 times 128 wide, and 0.75 times within."""

_FORMATS: dict[str, tuple[Format, ...]] = {
    "norm": ("bf16",),
    "router": ("bf16",),
    "moe": ("nvfp4", "mxfp4", "fp8", "fp8_blocks", "bf16"),
}
"""What somebody's own kernel is tried with; one of another slot, a matrix, with all."""

_NOT_OF_CHECKPOINTS: tuple[Recipe, ...] = ("NaN scales", "negative scales", "scales apart in a row")
"""Weights that the package's kernels are tried with and that no model has."""

_FEW = range(1, _MOST_TOKENS + 1)
_LARGE_BATCHES = (17, 130)  # tokens for somebody's own kernels, which may take as many

_SHAPES = {
    "qkv": ((5120, 2880), (5120, 2048)),
    "o": ((2880, 4096), (2048, 4096)),
    "mlp": ((3712, 2688), (2688, 1856)),
    "router": ((32, 2880), (128, 2048), (512, 2048)),
    "lm_head": ((201088, 2880),),
}
"""Weights, (N, K), of gpt-oss, Qwen3-30B-A3B, Qwen3-Next and Nemotron-3-Nano. The slot router has
the matrix that makes the logits, and the choice by them."""
_SIZES: dict[str, tuple[tuple[Sizes, ActivationName], ...]] = {
    "cpu": ((Sizes(4, 2, 576, 288), "swiglu"),),
    "cuda": (
        (Sizes(16, 4, 2880, 2880), "swiglu"),
        (Sizes(32, 8, 2048, 768), "silu"),
        (Sizes(64, 10, 2048, 512), "silu"),
        (Sizes(16, 6, 2688, 1856), "relu2"),
    ),
}
"""Layers of gpt-oss, Qwen3-30B-A3B, Qwen3-Next and Nemotron-3-Nano with fewer experts."""
_TOKENS = {"cpu": (3,), "cuda": (1, 2, 4, 8, 16)}
"""Of the cases with these shapes; on the CPU's emulator they take long."""
_RECIPES: tuple[Recipe, ...] = ("plain", "one element a row")
"""Of the same: an error that many products allow may hide a lost one; a single product allows
nearly none."""


def formats_of(candidate: KernelCandidate) -> tuple[Format, ...]:
    """Of the weights that a candidate is tried with; none of a choice of experts."""
    if candidate.formats or not candidate.is_custom:
        return candidate.formats
    return _FORMATS.get(candidate.slot, ("nvfp4", "mxfp4", "fp8", "fp8_blocks", "int4", "bf16"))


def cases_of(candidate: KernelCandidate, device: str) -> Iterator[Case]:
    """The cases of a candidate's slot; somebody's own gets none that no model brings."""
    slot, custom = candidate.slot, candidate.is_custom
    if slot == "norm":
        yield from norm_cases()
        return
    if slot == "router" and (custom or not candidate.formats):
        yield from _choices(custom)
    for kind in formats_of(candidate):
        cases = (
            _experts(kind, custom, device) if slot == "moe" else _matrices(kind, candidate, device)
        )
        for case in cases:
            if not custom:
                yield case
            elif case.layout == "contiguous" and case.recipe not in _NOT_OF_CHECKPOINTS:
                yield replace(case, may_refuse=False)


def _choices(custom: bool) -> Iterator[RoutingCase]:
    for case in routing_cases():
        # A softmax in float32 is 0 for most of these far apart, and of zeros any may be chosen.
        if not custom or case.logits != "far apart" or "sigmoid" in case.scheme:
            yield case
    for tokens in (*_FEW, *_LARGE_BATCHES) if custom else ():
        if tokens != 5:
            yield RoutingCase(32, 4, tokens, "the same experts")
        yield RoutingCase(32, 4, tokens, dtype=torch.float32, scheme="softmax of all")


def _matrices(kind: Format, candidate: KernelCandidate, device: str) -> Iterator[DenseCase]:
    slot, custom = candidate.slot, candidate.is_custom
    for case in dense_cases(kind):
        if not (custom and kind == "mxfp4" and case.recipe == "scales apart by row"):
            yield case
    if custom:
        for tokens in _LARGE_BATCHES:
            yield DenseCase(kind, SMALL, tokens, bias=True)
        for tokens in _FEW:
            # The other way round than in `dense_cases`, and tokens that those have for one number.
            other = DenseCase(kind, (64, 320), tokens, bias=tokens % 3 != 1)
            yield from (other, replace(other, bias=False, x="zeros"))
            yield replace(other, bias=False, x="apart")
    few_rows = 48 if kind == "bf16" and not custom else 40
    shapes: Sequence[tuple[int, int]] = ((32, 2880), (few_rows, 1856))
    if device == "cuda":
        # No model has a router of fewer bits.
        slots = (
            [slot]
            if custom
            else [slot_name for slot_name in _SHAPES if slot_name != "router" or kind == "bf16"]
        )
        shapes = [shape for slot_name in slots for shape in _SHAPES[slot_name]]
    for shape, recipe, tokens in product(shapes, _RECIPES, _TOKENS[device]):
        yield DenseCase(kind, shape, tokens, recipe, bias=tokens == 4)


def _experts(kind: Format, custom: bool, device: str) -> Iterator[MoeCase]:
    yield from moe_cases(kind)
    if custom:
        for tokens in _LARGE_BATCHES:
            yield MoeCase(kind, SMALL_EXPERTS, tokens, "swiglu")
        for tokens in _FEW:
            # The other way round than in `moe_cases`.
            case = MoeCase(kind, SMALL_EXPERTS, tokens, "silu" if tokens % 2 else "swiglu")
            yield from (case, replace(case, x="zeros"))
            if tokens != 12:
                yield replace(case, logits="the same experts")
        yield MoeCase(kind, Sizes(64, 4, 192, 96), 16, "silu", "every expert in turn")
    for (sizes, activation), recipe, tokens in product(_SIZES[device], _RECIPES, _TOKENS[device]):
        yield MoeCase(kind, sizes, tokens, activation, recipe=recipe)


def dense_cases(kind: Format) -> Iterator[DenseCase]:
    """The small cases of a format: each number of tokens and each edge."""
    for tokens in _FEW:
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


def moe_cases(kind: Format) -> Iterator[MoeCase]:
    """The small cases of a format: each number of tokens and each edge."""
    for tokens in _FEW:
        yield MoeCase(kind, SMALL_EXPERTS, tokens, "swiglu" if tokens % 2 else "silu")
    for tokens in (1, 8, 11):
        yield MoeCase(kind, SMALL_EXPERTS, tokens, "relu2")
    activations: tuple[ActivationName, ...] = ("silu", "swiglu", "relu2")
    for activation in activations:
        yield MoeCase(kind, SMALL_EXPERTS, 12, activation, "the same experts")
        yield MoeCase(kind, SMALL_EXPERTS, 9, activation, x="NaN and infinity")
        yield MoeCase(kind, Sizes(64, 3, 192, 96), 3, activation)
        yield MoeCase(kind, SMALL_EXPERTS, 4, activation, recipe="zero blocks")
        yield MoeCase(kind, SMALL_EXPERTS, 4, activation, recipe="one element a row")
    yield MoeCase(kind, SMALL_EXPERTS, 3, "silu", "far apart")
    yield MoeCase(kind, SMALL_EXPERTS, 3, "silu", "ties")
    yield MoeCase(kind, SMALL_EXPERTS, 3, "swiglu", x="zeros")
    yield MoeCase(kind, SMALL_EXPERTS, 3, "silu", recipe="NaN scales", may_refuse=True)
    if kind == "nvfp4":
        yield MoeCase(kind, SMALL_EXPERTS, 2, "swiglu", recipe="a global scale for each shard")
    for layout in ("rows apart", "columns apart"):
        yield MoeCase(kind, SMALL_EXPERTS, 3, "swiglu", layout=layout, may_refuse=True)


def routing_cases() -> Iterator[RoutingCase]:
    """The experts of real models, each number of tokens, and each edge."""
    for tokens in _FEW:
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


def norm_cases() -> Iterator[NormCase]:
    """Each number of tokens, the widths of models, and each edge."""
    for residual in (False, True):
        for tokens in (*_FEW, *_LARGE_BATCHES):
            yield NormCase(tokens, 448, residual)
            yield NormCase(tokens, 448, residual, "zeros")
        for columns in (64, 128, 576, 2048, 2880, 4096, 8192):
            yield NormCase(3, columns, residual)
        for x in ("NaN and infinity", "with a common offset"):
            yield NormCase(9, 448, residual, x)
