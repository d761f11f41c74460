"""What a live vLLM layer rounds activations to; what is not known does not: a strict bound."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import Any

import torch

from spark_prof.swaps.build import SwapPoint
from spark_prof.swaps.decoder_layer import LayerModules
from spark_prof.swaps.swap_settings import Rounded

_FP8 = """
CutlassFP8ScaledMM CutlassFp8BlockScaledMM FlashInferFP8ScaledMM FlashInferFp8BlockScaledMM
FlashInferFp8DeepGEMMDynamicBlockScaled DeepGemmFp8BlockScaledMM TritonFP8ScaledMM
TritonFp8BlockScaledMM PerTensorTorchFP8ScaledMM RowWiseTorchFP8ScaledMM
ChannelWiseTorchFP8ScaledMM BlockWiseTorchFP8ScaledMM B12xTensorFP8ScaledMM B12xFp8BlockScaledMM"""
_FP4 = """
CutlassNvFp4 FbgemmNvFp4 FlashInferCuteDslNvFp4 FlashInferCutlassNvFp4 FlashInferTrtllmNvFp4
FlashInferCudnnNvFp4 FlashInferB12xNvFp4 B12xNvFp4 TorchNvFp4 EmulationNvFp4 FlashInferMxFp4
B12xMxFp4"""
KERNELS: dict[str, Rounded] = {
    **dict.fromkeys(_FP8.split(), "fp8"), **dict.fromkeys(_FP4.split(), "fp4"),
}  # fmt: skip
"""vLLM's kernels for a matrix that round what they multiply, by their classes' names without
`LinearKernel` or `Kernel` at the end; of versions 0.26 to 0.33."""

HUMMING: dict[str, Rounded] = {"float8e4m3": "fp8", "float4e2m1": "fp4"}
"""The same of Humming's kernels, by the `a_dtype` of their layer's config.

Where a GPU has no product of what the scheme asks for, Humming takes another: of MXFP4 weights in
vLLM 0.33 on Hopper E4M3, a scale for each token, also where the checkpoint has 16 bits.
"""

EXPERTS: dict[Any, Rounded] = {
    torch.float8_e4m3fn: "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4",
}  # fmt: skip
"""The same of experts, by the `quant_dtype` of their config."""

_UNIT = 4.0  # about the largest value of a token of unit size


def rounded_by(point: SwapPoint) -> Rounded:
    """What the stock layer of a place, with its weights laid out, rounds activations to."""
    layer = LayerModules.of(point.module)
    if point.kind in ("experts", "normed experts"):
        return _of_experts((layer.mlp.experts if layer else point.module).routed_experts)
    if point.kind == "normed mlp" and layer:
        return _of_matrix(layer.mlp.gate_up_proj)
    if point.kind in ("matrix", "normed matrix"):
        return _of_matrix(layer.matrices[0] if layer else point.module)
    return ""


def _of_matrix(module: Any) -> Rounded:
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        return ""  # some methods then decode their weights and multiply in 16 bits
    for holder in (getattr(module, "scheme", None), module.quant_method):
        for name in ("fp8_linear", "kernel"):
            kernel = getattr(holder, name, None)
            config = getattr(kernel, "layer_config", None)
            if rounding := HUMMING.get(str(getattr(config, "a_dtype", ""))):
                return rounding
            kind = type(kernel).__name__
            if rounding := KERNELS.get(kind.removesuffix("Kernel").removesuffix("Linear")):
                return rounding
    return ""


def _of_experts(module: Any) -> Rounded:
    with suppress(Exception):  # it says so where it is called
        module._ensure_moe_quant_config_init()
    config = getattr(module.quant_method, "moe_quant_config", None)
    return EXPERTS.get(getattr(config, "quant_dtype", None), "")


def largest_input(module: Any, rounded: Rounded) -> float:
    """What a static scale holds; of experts at most a token of unit size: down has a scale too."""
    config = getattr(module.quant_method, "moe_quant_config", module)
    names = {"fp8": ("input_scale", "a1_scale"), "fp4": ("input_global_scale_inv", "a1_gscale")}
    for scale in (getattr(config, name, None) for name in names.get(rounded, ())):
        if isinstance(scale, torch.Tensor):
            most = 448 * (float(scale.min()) if rounded == "fp8" else 6 / float(scale.max()))
            return most if config is module else min(most, _UNIT)
    return math.inf
