"""The cases that matrices, experts, routers and norms have to pass, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.candidate import ExpertsLayer, Format
from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.inputs import (
    Guarded,
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
    RoutingRule,
    linear_oracle,
    moe_oracle,
    norm_oracle,
    routing_oracle,
    routing_weights,
)
from spark_prof.kernels.check.verdict import Judge, Judgement, first_difference, judge, same_bits
from spark_prof.kernels.kernel_error import KernelError

Scheme = Literal["softmax of the chosen", "softmax of all", "sigmoid", "corrected sigmoid"]
Route = Callable[[torch.Tensor, int, RoutingRule], tuple[torch.Tensor, torch.Tensor]]
"""From logits [M, E] and k to experts int32 [M, k] and weights float32 [M, k]."""

_MOST_TOKENS = 16
_CLOSE = 2.0**-20
"""Sigmoids, and their sums with a correction, that float32 need not tell apart."""


def special(**fields: str) -> list[str]:
    """What is special about a case, of its inputs by name."""
    return [
        f"{name}: {what}" for name, what in fields.items() if what not in ("plain", "contiguous")
    ]


@dataclass(frozen=True)
class RoutingCase:
    """What is routed."""

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
        words += special(logits=self.logits)
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


Linear = Callable[[Weight], Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], object]]
"""Packs a weight; what it returns computes x, bias, out: it writes out [M, N]."""

SMALL = (48, 448)
"""3 stacks of 16 rows and 3.5 times 128 columns, as 2880 is 22.5 times and 1856 14.5 times."""
_ROWS_AT_ONCE = 16384
"""Bounds what a large weight takes in float64."""


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

    def build() -> Callable[[torch.Tensor], object]:
        compute = linear(weight)
        return lambda out: compute(x, bias, out)

    return _run(case, rows, build, lambda: _expected(x, weight, bias), device, judged)


def _run(
    case: DenseCase | MoeCase,
    columns: int,
    build: Callable[[], Callable[[torch.Tensor], object]],
    expected: Callable[[], Expected],
    device: str,
    judged: Judge,
) -> Judgement:
    """Runs what is built twice, and holds what it writes, and where, against what is expected."""
    out, again = (Guarded((case.tokens, columns), torch.bfloat16, device) for _ in range(2))
    try:
        compute = build()
        compute(out.tensor)
        compute(again.tensor)
    except KernelError as error:
        return Judgement(None, "" if case.may_refuse else f"refused: {error}")
    beside = out.problem()
    if beside:
        return Judgement(None, beside)
    judgement = judged(out.tensor, expected())
    if judgement.detail:
        return judgement
    return Judgement(judgement.used, first_difference(compute, out.tensor, again.tensor))


def _expected(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> Expected:
    parts = []
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        part = decode(part_of(weight, rows))
        parts.append(linear_oracle(x, part, None if bias is None else bias[rows]))
    return Expected(
        torch.cat([part.value for part in parts], 1), torch.cat([part.error for part in parts], 1)
    )


Moe = Callable[[ExpertsLayer], Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]]
"""Packs a layer; what it returns computes x, logits, out: it writes out [M, H]."""


SMALL_EXPERTS = Sizes(8, 3, 192, 96)
"""1.5 times 128 wide, and 0.75 times within."""


@dataclass(frozen=True)
class MoeCase:
    """What the experts do."""

    format: Format
    sizes: Sizes
    tokens: int
    activation: Literal["silu", "swiglu"] = "silu"  # `silu` without biases, or `swiglu` with them
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


def moe_cases(kind: Format) -> Iterator[MoeCase]:
    """The small cases of a format: each number of tokens and each edge."""
    for tokens in range(1, _MOST_TOKENS + 1):
        yield MoeCase(kind, SMALL_EXPERTS, tokens, "swiglu" if tokens % 2 else "silu")
    for activation in ("silu", "swiglu"):
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


def run_moe_case(
    case: MoeCase, moe: Moe, device: str, judged: Judge = judge, rounded_between: bool = False
) -> Judgement:
    """Runs a case: the result within its bound, nothing beside it written, and again equal bits.

    Args:
        rounded_between: whether a kernel may round to bfloat16 in more places (`moe_oracle`).
    """
    sizes = case.sizes
    layer = make_layer(case.format, sizes, case.activation, device, case.recipe)
    x = surrounded(make_activations(case.x, case.tokens, sizes.hidden, 2, device, case.layout))
    logits = surrounded(
        make_logits(case.logits, case.tokens, sizes.experts, torch.bfloat16, device)
    )

    def build() -> Callable[[torch.Tensor], object]:
        compute = moe(layer)
        return lambda out: compute(x, logits, out)

    def expected() -> Expected:
        experts, weights = routing_oracle(logits, sizes.top_k)
        return moe_oracle(x, experts, weights, layer, rounded_between)

    return _run(case, sizes.hidden, build, expected, device, judged)


BuildNorm = Callable[
    [torch.Tensor, float], Callable[[torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, ...]]
]
"""Packs a norm's weight and epsilon; what it returns norms x with a residual or None: the norm, and
the sum where there is a residual."""

EPSILON = 1e-5


@dataclass(frozen=True)
class NormCase:
    """What is normed."""

    tokens: int
    columns: int
    residual: bool = False
    x: Tokens = "plain"

    @property
    def label(self) -> str:
        """For messages: `3 tokens, 448 columns, residual`."""
        words = [f"{self.tokens} tokens", f"{self.columns} columns"]
        words += special(activations=self.x)
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


def run_norm_case(case: NormCase, build: BuildNorm, device: str) -> Judgement:
    """Runs a case: both results within their bounds, and again equal bits."""
    shape = (case.tokens, case.columns)
    x = surrounded(make_activations(case.x, *shape, 2, device))
    residual = surrounded(make_activations("plain", *shape, 5, device)) if case.residual else None
    weight = make_activations("plain", 1, case.columns, 3, device)[0]
    norm = build(weight, EPSILON)
    results = norm(x, residual)
    expected = norm_oracle(x, residual, weight, EPSILON)
    judged = [judge(*pair) for pair in zip(results, expected, strict=True)]
    wrong = next((judgement for judgement in judged if judgement.detail), None)
    if wrong is not None:
        return wrong

    def compute(to: torch.Tensor) -> object:
        return to.copy_(norm(x, residual)[0])

    again = torch.empty_like(results[0])
    compute(again)
    return Judgement(judged[0].used, first_difference(compute, results[0].clone(), again))
