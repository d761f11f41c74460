"""vLLM's Marlin as a contestant, prepared and called as vLLM 0.26 does for a dense layer.

Its sources: `vllm/model_executor/kernels/linear/{nvfp4,mxfp4}/marlin.py` and
`vllm/model_executor/layers/quantization/utils/marlin_utils_fp4.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spark_prof.kernels.bench.race import clones
from spark_prof.kernels.bench.weights import Weight
from spark_prof.kernels.formats import NvFp4

__all__ = ["marlin"]


def marlin(weight: Weight, copies: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Multiplies by copies of a weight.

    Raises:
        ImportError: there is no vLLM, or none of a version that has these functions.
    """
    import vllm._custom_ops  # noqa: F401 - loads its kernels
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
        apply_fp4_marlin_linear,
        prepare_fp4_layer_for_marlin,
    )

    prepared = _layer(weight)
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


def _layer(weight: Weight) -> Any:
    """A module with the attributes of vLLM's linear layer after its checkpoint was read."""

    def parameter(values: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(values.clone(), requires_grad=False)

    layer: Any = torch.nn.Module()
    layer.output_size_per_partition, layer.input_size_per_partition = weight.shape
    layer.params_dtype = torch.bfloat16
    layer.weight = parameter(weight.packed)
    layer.weight_scale = parameter(weight.scales)
    if isinstance(weight, NvFp4):
        # vLLM turns compressed-tensors' divisors round when it reads them.
        multiplier = weight.global_scale.multiplier().to(torch.float32)
        layer.weight_global_scale = parameter(multiplier)
    return layer
