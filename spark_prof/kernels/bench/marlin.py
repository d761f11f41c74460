"""vLLM's Marlin as a contestant, prepared and called as vLLM 0.26 does for a dense layer.

Its sources: `vllm/model_executor/kernels/linear/{nvfp4,mxfp4}/marlin.py` and
`vllm/model_executor/layers/quantization/utils/marlin_utils_{fp4,fp8}.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spark_prof.kernels.bench.race import clones
from spark_prof.kernels.bench.weights import Weight
from spark_prof.kernels.check.weights import Bf16
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import Fp8Rows, MxFp4, NvFp4

Multiply = Callable[[torch.Tensor, int], torch.Tensor]
"""Multiplies x [M, K] by the copy of the weight of that number."""


def marlin(weight: Weight, copies: int) -> Multiply:
    """Multiplies by copies of a weight.

    Raises:
        ImportError: there is no vLLM, or none of a version that has these functions.
        KernelError: Marlin has no kernel for the weight's format.
    """
    if isinstance(weight, Bf16):
        raise KernelError("Marlin multiplies by weights of fewer bits than BF16")
    import vllm._custom_ops  # noqa: F401 - loads its kernels

    return _fp8(weight, copies) if isinstance(weight, Fp8Rows) else _fp4(weight, copies)


def _fp8(weight: Fp8Rows, copies: int) -> Multiply:
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp8 import (
        apply_fp8_marlin_linear,
        prepare_fp8_layer_for_marlin,
    )

    prepared = _layer(weight.values, weight.scales.unsqueeze(-1), weight.shape)
    prepared.orig_dtype = torch.bfloat16
    prepare_fp8_layer_for_marlin(prepared, size_k_first=False)
    layers = clones(prepared, copies)

    def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
        layer: Any = layers[number]
        out: torch.Tensor = apply_fp8_marlin_linear(
            input=x,
            weight=layer.weight,
            weight_scale=layer.weight_scale,
            workspace=layer.workspace,
            size_n=layer.output_size_per_partition,
            size_k=layer.input_size_per_partition,
            bias=None,
        )
        return out

    return multiply


def _fp4(weight: NvFp4 | MxFp4, copies: int) -> Multiply:
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
        apply_fp4_marlin_linear,
        prepare_fp4_layer_for_marlin,
    )

    prepared = _layer(weight.packed, weight.scales, weight.shape)
    if isinstance(weight, NvFp4):
        # vLLM turns compressed-tensors' divisors round when it reads them.
        prepared.weight_global_scale = _parameter(weight.global_scale.multiplier(torch.float32))
    prepare_fp4_layer_for_marlin(prepared)
    layers = clones(prepared, copies)

    def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
        layer: Any = layers[number]
        out: torch.Tensor = apply_fp4_marlin_linear(
            input=x,
            weight=layer.weight,
            weight_scale=layer.weight_scale,
            weight_global_scale=getattr(layer, "weight_global_scale", None),
            workspace=layer.workspace,
            size_n=layer.output_size_per_partition,
            size_k=layer.input_size_per_partition,
            bias=None,
        )
        return out

    return multiply


def _layer(weight: torch.Tensor, scales: torch.Tensor, shape: torch.Size) -> Any:
    """A module with the attributes of vLLM's linear layer after its checkpoint was read."""
    layer: Any = torch.nn.Module()
    layer.output_size_per_partition, layer.input_size_per_partition = shape
    layer.params_dtype = torch.bfloat16
    layer.weight = _parameter(weight)
    layer.weight_scale = _parameter(scales)
    return layer


def _parameter(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.clone(), requires_grad=False)
