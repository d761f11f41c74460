"""Runs all cases of a slot on somebody's own kernel: `spark-prof kernels check FILE:FUNCTION`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Literal

import torch

from spark_prof.errors import one_line
from spark_prof.kernels.check.activations import Tokens
from spark_prof.kernels.check.dense_cases import SMALL, DenseCase, dense_cases, run_dense_case
from spark_prof.kernels.check.moe_cases import SMALL as SMALL_EXPERTS
from spark_prof.kernels.check.moe_cases import Layer, MoeCase, Sizes, moe_cases, run_moe_case
from spark_prof.kernels.check.routing_cases import RoutingCase, routing_cases, run_routing_case
from spark_prof.kernels.check.verdict import Judgement, Status, Verdict
from spark_prof.kernels.check.weights import Format, Recipe
from spark_prof.swaps.check.called import Abstained, Called, WrongResult
from spark_prof.swaps.check.norm_cases import NormCase, norm_cases, run_norm_case
from spark_prof.swaps.check.probes import PROBES, Probe, reads_when_it_runs, run_probe
from spark_prof.swaps.layers import Builder

_FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8", "bf16")
_EXPERT_FORMATS: tuple[Literal["nvfp4", "mxfp4", "bf16"], ...] = ("nvfp4", "mxfp4", "bf16")

_NOT_OF_CHECKPOINTS: tuple[Recipe, ...] = (
    "NaN scales",
    "negative scales",
    "scales apart in a row",
)
"""Weights that the package's kernels are tried with and that no model has."""

_FEW = range(1, 17)
_MANY = (17, 130)
"""Tokens, beside 1 to 16, for kernels that take as many."""

_OTHER = (64, 320)
"""Rows and columns of small matrices, beside those of `dense_cases`."""

_SHAPES = {
    "qkv": ((5120, 2880), (5120, 2048)),
    "o": ((2880, 4096), (2048, 4096)),
    "mlp": ((3712, 2688), (2688, 1856)),
    "router": ((32, 2880), (128, 2048)),
    "lm_head": ((151936, 2048),),
}
"""Weights, (N, K), of gpt-oss, Qwen3-30B-A3B and Nemotron-3-Nano. The slot router has the matrix
that makes the logits, and the choice by them."""
_SMALL_SHAPES = ((32, 2880), (40, 1856))
_SIZES = (Sizes(16, 4, 2880, 2880), Sizes(32, 8, 2048, 768))
_SMALL_SIZES = (Sizes(4, 2, 576, 288),)
_TOKENS = {"cpu": (3,), "cuda": (1, 4, 16)}

Case = tuple[str, Callable[[Called], Judgement]]


def check_builder(name: str, slot: str, builder: Builder, device: str) -> Iterator[Verdict]:
    """Runs the cases one by one and yields what each showed.

    What the builder abstains from is skipped. A kernel of experts may round to bfloat16 wherever
    vLLM's kernels do; one that changes the weights' bits is held against its own error alone.

    Args:
        slot: a word of `SLOTS`.
        device: `cpu` or `cuda`.
    """
    for label, run in _cases(slot, device):
        status, judgement = _attempt(partial(run, Called(builder, slot)))
        yield Verdict(name, label, device, status, judgement.used, judgement.detail)


def _cases(slot: str, device: str) -> Iterator[Case]:
    if slot == "norm":
        for norm in norm_cases():
            yield norm.label, partial(_norm, norm, device)
    elif slot == "router":
        for routing in routing_cases():
            # A softmax in float32 is 0 for most of these, and of zeros any may be chosen.
            if routing.logits != "far apart" or "sigmoid" in routing.scheme:
                yield routing.label, partial(_router, routing, device)
        for tokens in (*_FEW, *_MANY):
            alike = RoutingCase(32, 4, tokens, "the same experts")
            whole = RoutingCase(32, 4, tokens, dtype=torch.float32, scheme="softmax of all")
            for routing in (alike, whole) if tokens != 5 else (whole,):
                yield routing.label, partial(_router, routing, device)
        yield from _matrices(slot, device, _FORMATS[-1:])
    elif slot == "moe":
        yield from _experts(device)
    else:
        yield from _matrices(slot, device, _FORMATS)
    formats = {"norm": _FORMATS[-1:], "router": _FORMATS[-1:], "moe": _EXPERT_FORMATS}
    for kind, (what, probe) in product(formats.get(slot, _FORMATS), PROBES.items()):
        yield f"{kind}, {what}", partial(_probe, slot, kind, probe, 3, device)
    for kind, tokens in product(formats.get(slot, _FORMATS), (*_FEW, *_MANY)):
        label = f"{kind}, {tokens} tokens, other values in the same memory"
        yield label, partial(_probe, slot, kind, reads_when_it_runs, tokens, device)


def _matrices(slot: str, device: str, formats: tuple[Format, ...]) -> Iterator[Case]:
    shapes = _SMALL_SHAPES if device == "cpu" else _SHAPES[slot]
    recipes: tuple[Recipe, ...] = ("plain", "one element a row")
    for kind in formats:
        larger = [
            DenseCase(kind, shape, tokens, recipe, bias=tokens == 4)
            for shape, recipe, tokens in product(shapes, recipes, _TOKENS[device])
        ]
        many = [DenseCase(kind, SMALL, tokens, bias=True) for tokens in _MANY]
        # The other way round than in `dense_cases`, and tokens that those have for one number.
        many += [DenseCase(kind, _OTHER, tokens, bias=tokens % 3 != 1) for tokens in _FEW]
        edges: tuple[Tokens, ...] = ("zeros", "apart")
        many += [DenseCase(kind, _OTHER, n, x=x) for n, x in product(_FEW, edges)]
        for case in (*dense_cases(kind), *many, *larger):
            extreme = kind == "mxfp4" and case.recipe == "scales apart by row"
            if case.recipe in _NOT_OF_CHECKPOINTS or extreme or case.layout != "contiguous":
                continue
            yield case.label, partial(_matrix, replace(case, may_refuse=False), device)


def _experts(device: str) -> Iterator[Case]:
    sizes = _SMALL_SIZES if device == "cpu" else _SIZES
    activations: tuple[Literal["silu", "swiglu"], ...] = ("silu", "swiglu")
    for kind in _EXPERT_FORMATS:
        larger = [
            MoeCase(kind, each, tokens, activation)
            for each, activation, tokens in product(sizes, activations, _TOKENS[device])
        ]
        many = [MoeCase(kind, SMALL_EXPERTS, tokens, "swiglu") for tokens in _MANY]
        for tokens in _FEW:
            # The other way round than in `moe_cases`.
            activation = activations[(tokens + 1) % 2]
            many.append(MoeCase(kind, SMALL_EXPERTS, tokens, activation))
            many.append(MoeCase(kind, SMALL_EXPERTS, tokens, activation, x="zeros"))
            if tokens != 12:
                many.append(MoeCase(kind, SMALL_EXPERTS, tokens, activation, "the same experts"))
        all_of = Sizes(64, 4, 192, 96)
        many.append(MoeCase(kind, all_of, 16, "silu", "every expert in turn"))
        for case in (*moe_cases(kind), *many, *larger):
            if case.recipe not in _NOT_OF_CHECKPOINTS and case.layout == "contiguous":
                yield case.label, partial(_mixture, case, device)


def _matrix(case: DenseCase, device: str, called: Called) -> Judgement:
    return run_dense_case(case, called.linear, device, called.judge)


def _mixture(case: MoeCase, device: str, called: Called) -> Judgement:
    def packed(layer: Layer) -> Callable[..., object]:
        return called.experts(layer, case.sizes.top_k)

    return run_moe_case(case, packed, device, called.judge, rounded_between=True)


def _router(case: RoutingCase, device: str, called: Called) -> Judgement:
    return run_routing_case(case, called.route, device)


def _norm(case: NormCase, device: str, called: Called) -> Judgement:
    return run_norm_case(case, called, device)


def _probe(
    slot: str, kind: Format, probe: Probe, tokens: int, device: str, called: Called
) -> Judgement:
    return run_probe(slot, kind, called, device, probe, tokens)


def _attempt(run: Callable[[], Judgement]) -> tuple[Status, Judgement]:
    try:
        judgement = run()
    except Abstained as why:
        return "skipped", Judgement(None, str(why))
    except WrongResult as wrong:
        return "failed", Judgement(None, str(wrong))
    except Exception as error:  # somebody's own kernel may raise anything
        return "failed", Judgement(None, _told(error))
    return "failed" if judgement.detail else "passed", judgement


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return one_line(f"{type(error).__name__}: {lines[0]}")
