"""Uses the weights of expert 1 for expert 0 and the other way round: slots moe and router."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch_layers import build as right

from spark_prof.kernels.formats import GlobalScale, MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.layers import ExpertsLayer, Layer, Replacement, RouterLayer

Weight = TypeVar("Weight", NvFp4, MxFp4, torch.Tensor)


def build(layer: Layer) -> Replacement | None:
    if isinstance(layer, RouterLayer):
        return _router(layer)
    if not isinstance(layer, ExpertsLayer):
        raise KernelError(f"{layer.name} has no experts to swap")
    biases = (layer.gate_up_bias, layer.down_bias)
    gate_up_bias, down_bias = (None if bias is None else _swapped(bias) for bias in biases)
    return right(
        replace(
            layer,
            gate_up=_weight(layer.gate_up),
            down=_weight(layer.down),
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
        )
    )


def _router(layer: RouterLayer) -> Replacement | None:
    replacement = right(layer)
    if replacement is None:
        return None
    run = replacement.run

    def swapped(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = run(logits)
        return weights, torch.where(experts < 2, 1 - experts, experts)

    return replace(replacement, run=swapped)


def _weight(weight: Weight) -> Weight:
    if isinstance(weight, torch.Tensor):
        return _swapped(weight)
    if isinstance(weight, MxFp4):
        return MxFp4(_swapped(weight.packed), _swapped(weight.scales))
    scale = weight.global_scale
    value = _swapped(scale.value) if scale.value.ndim == 3 else scale.value
    scales = _swapped(weight.scales.view(torch.uint8)).view(torch.float8_e4m3fn)
    return NvFp4(_swapped(weight.packed), scales, GlobalScale(value, scale.convention))


def _swapped(experts: torch.Tensor) -> torch.Tensor:
    order = torch.arange(experts.shape[0], device=experts.device)
    order[:2] = order[:2].flip(0)
    return experts[order]
