"""Runs the templates' Triton kernels in its interpreter, beside their plain PyTorch.

A process of its own, as `TRITON_INTERPRET` has to be set before Triton is imported.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from spark_prof.kernels.check.inputs import (
    Sizes,
    make_activations,
    make_layer,
    make_logits,
    make_weight,
)
from spark_prof.swaps.layers import Layer, LinearLayer, NormLayer, RouterLayer
from spark_prof.swaps.templates import experts, matrix, norm, router


def compare(what: str, template: Any, layer: Layer, *arguments: Any) -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    by_triton = template.build(layer).run(*arguments)
    os.environ["TRITON_INTERPRET"] = "0"
    by_torch = template.build(layer).run(*arguments)
    if isinstance(by_torch, torch.Tensor):
        by_triton, by_torch = (by_triton,), (by_torch,)
    for one, other in zip(by_triton, by_torch, strict=True):
        assert one.dtype == other.dtype, what
        assert one.shape == other.shape, what
        off = float((one.double() - other.double()).norm() / other.double().norm())
        assert off < 2.0**-6, (what, off)
        if one.dtype != torch.bfloat16:
            assert off < 1e-6, (what, off)
    print("close", what)


def activations(rows: int, columns: int, seed: int = 2) -> torch.Tensor:
    return make_activations("plain", rows, columns, seed, "cpu")


for residual in (None, activations(3, 448, 5)):
    layer = NormLayer("n", activations(1, 448, 3)[0], 1e-5)
    compare(f"norm, {residual is not None}", norm, layer, activations(3, 448), residual)
for scoring, correction, renormalize in (
    ("softmax", None, True),
    ("softmax", None, False),
    ("sigmoid", torch.linspace(0.4, -0.4, 24), True),
):
    routed = RouterLayer("r", 24, 4, renormalize, scoring, correction, 2.5)
    logits = make_logits("plain", 3, 24, torch.bfloat16, "cpu")
    compare(f"router, {scoring}, {renormalize}", router, routed, logits)
for kind in ("nvfp4", "mxfp4"):
    weight = make_weight(kind, "plain", (40, 160), 1, "cpu")
    bias = activations(1, 40, 3)[0]
    compare(f"matrix, {kind}", matrix, LinearLayer("q", "qkv", weight), activations(2, 160), bias)
    for activation in ("silu",) if kind == "nvfp4" else ("swiglu",):
        mixture = make_layer(kind, Sizes(4, 2, 96, 64), activation, "cpu")
        scores = make_logits("plain", 2, 4, torch.bfloat16, "cpu")
        compare(f"experts, {kind}, {activation}", experts, mixture, activations(2, 96), scores)
