"""Runs the cases of kernels on this machine: `spark-prof kernels check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Literal

import torch

from spark_prof.errors import one_line
from spark_prof.kernels.check.activations import make_activations
from spark_prof.kernels.check.dense_cases import DenseCase, dense_cases, run_dense_case
from spark_prof.kernels.check.fused_cases import fused_cases
from spark_prof.kernels.check.moe_cases import (
    Layer,
    MoeCase,
    Sizes,
    make_layer,
    moe_cases,
    run_moe_case,
)
from spark_prof.kernels.check.oracles import RoutingRule
from spark_prof.kernels.check.refusals import refusals
from spark_prof.kernels.check.routing_cases import make_logits, routing_cases, run_routing_case
from spark_prof.kernels.check.verdict import Judgement, Status, Verdict
from spark_prof.kernels.check.weights import Bf16, Format, Recipe, Weight, make_weight
from spark_prof.kernels.dense import linear
from spark_prof.kernels.dispatch import choose_linear, choose_moe
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.moe import Activation, moe, pack_experts
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.routing import Scoring, route

_MODEL_SHAPES = (
    (5120, 2880), (2880, 4096), (3712, 2688), (2688, 1856), (2048, 4096), (1536, 2048),
    (201088, 2880),
)  # fmt: skip
"""Weights, (N, K): of gpt-oss (the last its lm_head), Nemotron-3-Nano and Qwen3-30B-A3B."""
_ROUTER_SHAPES = ((32, 2880), (128, 2048), (512, 2048))
"""Routers of gpt-oss-20b, Qwen3-30B-A3B and Qwen3-Next."""
_SMALL_SHAPES = ((32, 2880), (40, 1856))
"""The same columns and few rows, as the emulator takes long."""
_SMALL_BF16_SHAPES = ((32, 2880), (48, 1856))

_MODEL_SIZES: tuple[tuple[Sizes, Literal["silu", "swiglu"]], ...] = (
    (Sizes(16, 4, 2880, 2880), "swiglu"),
    (Sizes(32, 8, 2048, 768), "silu"),
    (Sizes(64, 10, 2048, 512), "silu"),
)
"""Layers of gpt-oss, Qwen3-30B-A3B and Qwen3-Next, with fewer experts than those."""
_SMALL_SIZES: tuple[tuple[Sizes, Literal["silu", "swiglu"]], ...] = (
    (Sizes(4, 2, 576, 288), "swiglu"),
)
_TOKENS = {"cpu": (3,), "cuda": (1, 2, 4, 8, 16)}
_RECIPES: tuple[Recipe, ...] = ("plain", "one element a row")
"""Of the cases with these shapes: an error that many products allow may hide a lost one; a single
product allows nearly none."""

Cases = Iterator[tuple[str, Callable[[], Judgement]]]
"""Cases in words, each with what runs it."""


def _dense(formats: tuple[Format, ...], device: str) -> Cases:
    for kind in formats:
        shapes = _shapes(kind, device)
        larger = [
            DenseCase(kind, shape, tokens, recipe, bias=tokens == 4)
            for shape, recipe, tokens in product(shapes, _RECIPES, _TOKENS[device])
        ]
        for case in (*dense_cases(kind), *larger):
            yield case.label, partial(run_dense_case, case, packed_linear, device)
        operands = {
            "x": make_activations("plain", 3, 64, 2, device),
            "out": make_activations("plain", 3, 32, 2, device),
            "bias": make_activations("plain", 1, 32, 3, device)[0],
        }
        for label, run in refusals(partial(_small_linear, kind, device), operands, "x"):
            yield f"{kind}, {label}", run


def _shapes(kind: Format, device: str) -> tuple[tuple[int, int], ...]:
    if kind != "bf16":
        return _SMALL_SHAPES if device == "cpu" else _MODEL_SHAPES
    return _SMALL_BF16_SHAPES if device == "cpu" else (*_MODEL_SHAPES, *_ROUTER_SHAPES)


def _small_linear(kind: Format, device: str) -> Callable[..., object]:
    return packed_linear(make_weight(kind, "plain", (32, 64), 1, device))


def _moe(device: str) -> Cases:
    sizes = _SMALL_SIZES if device == "cpu" else _MODEL_SIZES
    kinds: tuple[Literal["nvfp4", "mxfp4"], ...] = ("nvfp4", "mxfp4")
    for kind in kinds:
        larger = [
            MoeCase(kind, each, tokens, activation, recipe=recipe)
            for (each, activation), recipe, tokens in product(sizes, _RECIPES, _TOKENS[device])
        ]
        for case in (*moe_cases(kind), *larger):
            yield case.label, partial(run_moe_case, case, packed_moe, device)
        operands = {
            "x": make_activations("plain", 3, 64, 2, device),
            "logits": make_logits("plain", 3, 4, torch.bfloat16, device),
            "out": make_activations("plain", 3, 64, 2, device),
        }
        for label, run in refusals(partial(_small_moe, kind, device), operands, "x"):
            yield f"{kind}, {label}", run


def _small_moe(kind: Literal["nvfp4", "mxfp4"], device: str) -> Callable[..., object]:
    layer = make_layer(MoeCase(kind, Sizes(4, 2, 64, 64), 3, "swiglu"), device)
    return partial(packed_moe(layer), top_k=2)


def _routing(device: str) -> Cases:
    for case in routing_cases():
        yield case.label, partial(run_routing_case, case, routed, device)
    logits = {"logits": make_logits("plain", 3, 32, torch.bfloat16, device)}
    # One column less is one expert less, and nothing is wrong with that.
    for label, run in refusals(lambda: partial(route, top_k=4), logits, "logits"):
        if label != "logits with a column less":
            yield label, run
    both = logits | {"correction": torch.zeros(32, device=device)}
    corrected = partial(route, top_k=4, scoring="sigmoid")
    for label, run in refusals(lambda: corrected, both, "logits"):
        yield f"with a correction, {label}", run


CHECKS: Mapping[str, Callable[[str], Cases]] = {
    "w4a16": partial(_dense, ("nvfp4", "mxfp4")),
    "fp8": partial(_dense, ("fp8",)),
    "w16a16": partial(_dense, ("bf16",)),
    "routing": _routing,
    "moe": _moe,
    "norm_quantize": partial(fused_cases, ("norm", "norm with residual")),
    "activation_quantize": partial(fused_cases, ("activation",)),
    "expand_quantize": partial(fused_cases, ("expand",)),
}
"""The cases on a device, by what the registry's kernels name as their check."""


def run_checks(names: Iterable[str], device: str) -> Iterator[Verdict]:
    """Runs the cases one by one and yields what each showed.

    Args:
        device: `cpu` or `cuda`.
    """
    for name in names:
        for label, run in CHECKS[name](device):
            status, judgement = _attempt(run)
            yield Verdict(name, label, device, status, judgement.used, judgement.detail)


def _attempt(run: Callable[[], Judgement]) -> tuple[Status, Judgement]:
    try:
        judgement = run()
    except KernelError as error:
        return "failed", Judgement(None, f"does not run: {error}")
    except torch.OutOfMemoryError:
        return "skipped", Judgement(None, "not enough memory on the GPU for this case")
    except RuntimeError as error:
        return "failed", Judgement(None, f"PyTorch: {one_line(str(error))}")
    return "failed" if judgement.detail else "passed", judgement


def packed_linear(weight: Weight) -> Callable[..., object]:
    """Packs a weight; what it returns takes x, bias and out."""
    packed = pack_linear(weight.values if isinstance(weight, Bf16) else weight)

    def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
        config = choose_linear(packed, max(1, len(x)), insist=True).config
        return linear(x, packed, bias, out, config)

    return compute


def packed_moe(layer: Layer) -> Callable[..., object]:
    """Packs experts; what it returns takes x, logits, top_k and out."""
    biases = layer.gate_up_bias, layer.down_bias
    gate_up, down = layer.gate_up, layer.down
    assert not isinstance(gate_up, Bf16), "these kernels are for fewer bits"
    assert not isinstance(down, Bf16), "as gate_up"
    packed = pack_experts(gate_up, down, *biases, Activation(layer.activation))

    def compute(x: torch.Tensor, logits: torch.Tensor, top_k: int, out: torch.Tensor) -> object:
        config = choose_moe(packed, top_k, max(1, len(x)), insist=True).config
        return moe(x, logits, packed, top_k, out=out, config=config)

    return compute


def routed(
    logits: torch.Tensor, top_k: int, rule: RoutingRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chosen experts and their weights."""
    scoring: Scoring = "sigmoid" if rule.sigmoid else "softmax"
    got = route(logits, top_k, rule.renormalize, scoring, rule.correction, rule.scale)
    return got.experts, got.weights
