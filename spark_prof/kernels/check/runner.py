"""Proves kernels right on this machine: `spark-prof kernels check`.

The package's kernels and somebody's own are candidates, called in one way (`Called`). The cases of
the package's are below; those of somebody's own, which may abstain, are in `own_cases.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Literal

import torch

from spark_prof.errors import one_line
from spark_prof.kernels.candidate import (
    Abstained,
    Candidate,
    ExpertsLayer,
    Format,
    Layer,
    LinearLayer,
    Replacement,
    RouterLayer,
    WrongResult,
)
from spark_prof.kernels.check.called import Called
from spark_prof.kernels.check.cases import (
    DenseCase,
    MoeCase,
    dense_cases,
    moe_cases,
    routing_cases,
    run_dense_case,
    run_moe_case,
    run_routing_case,
)
from spark_prof.kernels.check.inputs import (
    Recipe,
    Sizes,
    make_activations,
    make_layer,
    make_logits,
    make_weight,
)
from spark_prof.kernels.check.verdict import Judgement, Status, Verdict
from spark_prof.kernels.dense import linear
from spark_prof.kernels.dispatch import choose_linear, choose_moe
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import moe, pack_experts
from spark_prof.kernels.operands import LARGEST_BATCH
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.routing import route


def _build_linear(layer: Layer) -> Replacement:
    assert isinstance(layer, LinearLayer)
    packed = pack_linear(layer.weight)

    def run(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
        config = choose_linear(packed, max(1, len(x)), insist=True).config
        return linear(x, packed, bias, out, config)

    return Replacement(run, LARGEST_BATCH, "kept")


def _build_experts(layer: Layer) -> Replacement:
    assert isinstance(layer, ExpertsLayer)
    assert not isinstance(layer.gate_up, torch.Tensor), "these kernels are for fewer bits"
    assert not isinstance(layer.down, torch.Tensor), "as gate_up"
    biases = layer.gate_up_bias, layer.down_bias
    packed = pack_experts(layer.gate_up, layer.down, *biases, layer.activation)
    top_k = layer.router.top_k

    def run(x: torch.Tensor, logits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        config = choose_moe(packed, top_k, max(1, len(x)), insist=True).config
        return moe(x, logits, packed, top_k, out=out, config=config)

    return Replacement(run, LARGEST_BATCH, "kept")


def _build_router(layer: Layer) -> Replacement:
    assert isinstance(layer, RouterLayer)

    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        got = route(
            logits, layer.top_k, layer.renormalize, layer.scoring, layer.correction, layer.scale
        )
        return got.weights, got.experts

    return Replacement(run, LARGEST_BATCH, "kept")


W4A16 = Candidate("w4a16", "qkv", _build_linear, ("nvfp4", "mxfp4"), own=False)
FP8 = Candidate("fp8", "qkv", _build_linear, ("fp8",), own=False)
W16A16 = Candidate("w16a16", "qkv", _build_linear, ("bf16",), own=False)
ROUTING = Candidate("routing", "router", _build_router, own=False)
EXPERTS = Candidate("moe", "moe", _build_experts, ("nvfp4", "mxfp4"), own=False)

Cases = Iterator[tuple[str, Callable[[], Judgement]]]
"""Cases in words, each with what runs it."""

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


def _dense(candidate: Candidate, device: str) -> Cases:
    linear_of = Called(candidate).linear
    for kind in candidate.formats:
        shapes = _shapes(kind, device)
        larger = [
            DenseCase(kind, shape, tokens, recipe, bias=tokens == 4)
            for shape, recipe, tokens in product(shapes, _RECIPES, _TOKENS[device])
        ]
        for case in (*dense_cases(kind), *larger):
            yield case.label, partial(run_dense_case, case, linear_of, device)
        operands = {
            "x": make_activations("plain", 3, 64, 2, device),
            "out": make_activations("plain", 3, 32, 2, device),
            "bias": make_activations("plain", 1, 32, 3, device)[0],
        }
        weight = make_weight(kind, "plain", (32, 64), 1, device)
        for label, run in refusals(partial(linear_of, weight), operands, "x"):
            yield f"{kind}, {label}", run


def _shapes(kind: Format, device: str) -> tuple[tuple[int, int], ...]:
    if kind != "bf16":
        return _SMALL_SHAPES if device == "cpu" else _MODEL_SHAPES
    return _SMALL_BF16_SHAPES if device == "cpu" else (*_MODEL_SHAPES, *_ROUTER_SHAPES)


def _moe(candidate: Candidate, device: str) -> Cases:
    sizes = _SMALL_SIZES if device == "cpu" else _MODEL_SIZES
    experts_of = Called(candidate).experts
    for kind in candidate.formats:
        larger = [
            MoeCase(kind, each, tokens, activation, recipe=recipe)
            for (each, activation), recipe, tokens in product(sizes, _RECIPES, _TOKENS[device])
        ]
        for case in (*moe_cases(kind), *larger):
            yield case.label, partial(run_moe_case, case, experts_of, device)
        operands = {
            "x": make_activations("plain", 3, 64, 2, device),
            "logits": make_logits("plain", 3, 4, torch.bfloat16, device),
            "out": make_activations("plain", 3, 64, 2, device),
        }
        layer = make_layer(kind, Sizes(4, 2, 64, 64), "swiglu", device)
        for label, run in refusals(partial(experts_of, layer), operands, "x"):
            yield f"{kind}, {label}", run


def _routing(candidate: Candidate, device: str) -> Cases:
    routed = Called(candidate).route
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
    "w4a16": partial(_dense, W4A16),
    "fp8": partial(_dense, FP8),
    "w16a16": partial(_dense, W16A16),
    "routing": partial(_routing, ROUTING),
    "moe": partial(_moe, EXPERTS),
}
"""The cases on a device, by what the registry's kernels name as their check."""


def run_checks(names: Iterable[str], device: str) -> Iterator[Verdict]:
    """Runs the cases of the package's kernels one by one and yields what each showed."""
    for name in names:
        yield from run_cases(name, CHECKS[name](device), device)


def run_cases(name: str, cases: Cases, device: str, own: bool = False) -> Iterator[Verdict]:
    """Runs cases one by one; somebody's own kernel may abstain, and raise anything."""
    for label, run in cases:
        status, judgement = _attempt(run, own)
        yield Verdict(name, label, device, status, judgement.used, judgement.detail)


def _attempt(run: Callable[[], Judgement], own: bool) -> tuple[Status, Judgement]:
    try:
        judgement = run()
    except Abstained as why:
        return "skipped", Judgement(None, str(why))
    except WrongResult as wrong:
        return "failed", Judgement(None, str(wrong))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        if own:
            return "failed", Judgement(None, one_line(f"{type(error).__name__}: {lines[0]}"))
        if isinstance(error, KernelError):
            return "failed", Judgement(None, f"does not run: {error}")
        if isinstance(error, torch.OutOfMemoryError):
            return "skipped", Judgement(None, "not enough memory on the GPU for this case")
        if isinstance(error, RuntimeError):
            return "failed", Judgement(None, f"PyTorch: {one_line(str(error))}")
        raise
    return "failed" if judgement.detail else "passed", judgement


Change = Callable[[torch.Tensor], torch.Tensor]

_ANY_OPERAND: Mapping[str, Change] = {
    "in float64": lambda operand: operand.to(torch.float64),
    "with a column less": lambda operand: operand[..., :-1].contiguous(),
    "with a dimension more": lambda operand: operand[None],
}
_ROW_OPERAND: Mapping[str, Change] = {
    "of no tokens": lambda operand: operand[:0],
    "of 17 tokens": lambda operand: operand[:1].repeat(17, 1),
    "of one dimension": lambda operand: operand[0],
}


def refusals(
    made: Callable[[], Callable[..., object]], operands: Mapping[str, torch.Tensor], rows: str
) -> Iterator[tuple[str, Callable[[], Judgement]]]:
    """Each wrong operand in words, with what tries it.

    Of several operands each is put where the others are not. A kernel of one operand runs wherever
    that lies, on the CPU of a machine with a GPU too: only where no kernel runs is it refused.

    Args:
        made: makes what takes the operands by name.
        rows: which of them tells the number of tokens.
    """
    for name in operands:
        changes = {**_ANY_OPERAND, **_ROW_OPERAND} if name == rows else dict(_ANY_OPERAND)
        if len(operands) > 1:
            changes["on another device"] = _elsewhere
        else:
            changes["where no kernel runs"] = lambda operand: operand.to("meta")
        for what, change in changes.items():
            yield f"{name} {what}", partial(_refused, made, dict(operands), name, change)


def _elsewhere(operand: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(operand, device="meta" if operand.is_cpu else "cpu")


def _refused(
    made: Callable[[], Callable[..., object]],
    operands: dict[str, torch.Tensor],
    name: str,
    change: Change,
) -> Judgement:
    compute = made()
    try:
        compute(**operands | {name: change(operands[name])})
    except KernelError:
        return Judgement(None, "")
    except Exception as error:
        return Judgement(None, f"{type(error).__name__} in place of KernelError: {error}")
    return Judgement(None, "not refused")
