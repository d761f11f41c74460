"""Runs the cases of kernels on this machine: `spark-prof kernels check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from spark_prof.kernels.check.activations import make_activations
from spark_prof.kernels.check.dense_cases import dense_cases, run_dense_case
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
from spark_prof.kernels.check.weights import Format, Weight, make_weight
from spark_prof.kernels.dense import linear
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.experts import Activation, pack_experts
from spark_prof.kernels.moe import moe
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.routing import Scoring, route

__all__ = ["CHECKS", "run_checks"]

_SHAPES = {
    "cpu": ((32, 2880), (40, 1856)),
    "cuda": (
        (5120, 2880),
        (2880, 4096),
        (3712, 2688),
        (2688, 1856),
        (2048, 4096),
        (1536, 2048),
        (201088, 2880),
    ),
}
"""Weights, (N, K), with the columns of real models; on the CPU of few rows, as they take long."""


_SIZES = {
    "cpu": (Sizes(4, 2, 576, 288),),
    "cuda": (
        Sizes(16, 4, 2880, 2880),
        Sizes(32, 8, 2048, 768),
        Sizes(64, 10, 2048, 512),
        Sizes(16, 4, 2880, 2880),
    ),
}
"""Layers of gpt-oss, Qwen3-30B-A3B and Qwen3-Next with fewer experts; on the CPU smaller ones."""

Cases = Iterator[tuple[str, Callable[[], Judgement]]]
"""Cases in words, each with what runs it."""


def packed_linear(weight: Weight) -> Callable[..., object]:
    """The dense kernel as the cases call it."""
    packed = pack_linear(weight)
    return lambda x, bias, out: linear(x, packed, bias, out)


def _dense(formats: tuple[Format, ...], device: str) -> Cases:
    for kind in formats:
        for case in dense_cases(kind, _SHAPES[device]):
            yield case.label, partial(run_dense_case, case, packed_linear, device)
        packed = packed_linear(make_weight(kind, "plain", (32, 64), 1, device))
        operands = {
            name: make_activations("plain", 3, columns, 2, device)
            for name, columns in (("x", 64), ("out", 32))
        }
        operands["bias"] = make_activations("plain", 1, 32, 3, device)[0]
        for label, run in refusals(packed, operands, "x"):
            yield f"{kind}, {label}", run


def routed(
    logits: torch.Tensor, top_k: int, rule: RoutingRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """The routing kernel as the cases call it."""
    scoring: Scoring = "sigmoid" if rule.sigmoid else "softmax"
    got = route(logits, top_k, rule.renormalize, scoring, rule.correction, rule.scale)
    return got.experts, got.weights


def _routing(device: str) -> Cases:
    for case in routing_cases():
        yield case.label, partial(run_routing_case, case, routed, device)
    operands = {"logits": make_logits("plain", 3, 32, torch.bfloat16, device)}
    for label, run in refusals(partial(route, top_k=4), operands, "logits"):
        if label != "logits with a column less":
            yield label, run


def packed_moe(layer: Layer) -> Callable[..., object]:
    """The kernels of the experts as the cases call them."""
    packed = pack_experts(
        layer.gate_up,
        layer.down,
        layer.gate_up_bias,
        layer.down_bias,
        Activation(layer.activation),
    )
    return lambda x, logits, top_k, out: moe(x, logits, packed, top_k, out=out)


def _moe(device: str) -> Cases:
    for kind in ("nvfp4", "mxfp4"):
        for case in moe_cases(kind, _SIZES[device]):
            yield case.label, partial(run_moe_case, case, packed_moe, device)
        packed = packed_moe(make_layer(MoeCase(kind, Sizes(4, 2, 64, 64), 3, "swiglu"), device))
        operands = {
            "x": make_activations("plain", 3, 64, 2, device),
            "logits": make_logits("plain", 3, 4, torch.bfloat16, device),
            "out": make_activations("plain", 3, 64, 2, device),
        }
        for label, run in refusals(partial(packed, top_k=2), operands, "x"):
            yield f"{kind}, {label}", run


CHECKS: Mapping[str, Callable[[str], Cases]] = {
    "w4a16": partial(_dense, ("nvfp4", "mxfp4")),
    "fp8": partial(_dense, ("fp8",)),
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
        names: keys of CHECKS.
        device: `cpu` or `cuda`.
    """
    for name in names:
        for label, run in CHECKS[name](device):
            try:
                judgement = run()
            except KernelError as error:
                judgement = Judgement(None, f"does not run: {error}")
            status: Status = "failed" if judgement.detail else "passed"
            yield Verdict(name, label, device, status, judgement.used, judgement.detail)
