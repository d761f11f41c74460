"""Weights of several matrices of a live vLLM model as those of one.

An MLP that every token takes becomes further experts; matrices that read the same rows become one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from spark_prof.kernels.formats import (
    Fp8Rows,
    GlobalScale,
    MxFp4,
    NvFp4,
    QuantizedWeight,
    TwoStacks,
)
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.layers import ExpertsLayer, LinearLayer
from spark_prof.swaps.live_weights import read_linear


def joined_matrix(name: str, modules: Sequence[Any], slot: str) -> LinearLayer:
    """Reads matrices of the same input as one, whose rows are theirs in that order.

    A single one is read as it is; of several the weight is a copy.

    Raises:
        KernelError: they have different formats, or one that cannot be joined.
    """
    first, *further = (read_linear(name, module, slot).weight for module in modules)
    for other in further:
        if type(other) is not type(first):
            raise KernelError(
                f"one of its matrices is {_format_of(first)}, another {_format_of(other)}"
            )
        if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
            if first.dtype != other.dtype:
                raise KernelError(f"one of its matrices is {first.dtype}, another {other.dtype}")
            first = torch.cat([first, other])
        else:
            assert not isinstance(first, torch.Tensor)
            assert not isinstance(other, torch.Tensor)
            first = _joined(first, other, lambda part: part)
    return LinearLayer(name, slot, first)


_MLP_ACTIVATIONS = {"SiluAndMul": "silu", "ReLUSquaredActivation": "relu2"}
"""What experts call it, by vLLM's class."""


def add_shared(layer: ExpertsLayer, mlp: Any) -> ExpertsLayer:
    """The experts, and behind them an MLP that every token takes: as many more of their width."""
    if _MLP_ACTIVATIONS.get(type(mlp.act_fn).__name__) != layer.activation.name:
        raise KernelError("its shared expert has another activation than the others")
    gated = layer.activation.halves == 2
    projections = mlp.gate_up_proj if gated else mlp.up_proj, mlp.down_proj
    if any(getattr(projection, "bias", None) is not None for projection in projections):
        raise KernelError("its shared expert has a bias")
    gate_up, down = (read_linear(layer.name, part, "mlp").weight for part in projections)
    for shared, routed in ((gate_up, layer.gate_up), (down, layer.down)):
        if type(shared) is not type(routed):
            raise KernelError(
                f"its shared expert is {_format_of(shared)}, the others are {_format_of(routed)}"
            )
    count, rest = divmod(down.shape[-1], layer.down.shape[-1])
    if rest:
        raise KernelError(
            f"its shared expert is {down.shape[-1]} wide, and the others are {layer.down.shape[-1]}"
        )
    return replace(
        layer,
        gate_up=_stacked(layer.gate_up, gate_up, partial(_split_rows, count, 1 + gated)),
        down=_stacked(layer.down, down, partial(_split_columns, count)),
        router=replace(layer.router, always=count),
    )


def _format_of(weight: QuantizedWeight | torch.Tensor) -> str:
    return "not quantized" if isinstance(weight, torch.Tensor) else type(weight).__name__


def _split_rows(count: int, halves: int, part: torch.Tensor) -> torch.Tensor:
    """Rows of gate, then of up, or of up alone, as [count, rows of both, ...]."""
    return part.unflatten(0, (halves, count, -1)).transpose(0, 1).flatten(1, 2)


def _split_columns(count: int, part: torch.Tensor) -> torch.Tensor:
    """Columns [N, count * K] as [count, N, K]; of a scale of each row, for all."""
    if part.shape[-1] == 1:
        return part.expand(count, -1, -1)
    return part.unflatten(-1, (count, -1)).movedim(1, 0)


Split = Callable[[torch.Tensor], torch.Tensor]


def _stacked(
    experts: QuantizedWeight | torch.Tensor | TwoStacks,
    shared: QuantizedWeight | torch.Tensor,
    split: Split,
) -> QuantizedWeight | TwoStacks:
    """Experts and, behind them, those that a matrix is split into; BF16 experts stay in place."""
    if isinstance(experts, torch.Tensor) and isinstance(shared, torch.Tensor):
        return TwoStacks(experts, split(shared).contiguous())
    assert not isinstance(experts, torch.Tensor | TwoStacks)
    assert not isinstance(shared, torch.Tensor)
    return _joined(experts, shared, split)


def _joined(first: QuantizedWeight, second: QuantizedWeight, split: Split) -> QuantizedWeight:
    """The codes and scales of one weight and, behind them, what the other's are split into."""

    def both(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        kind = one.dtype
        if kind.itemsize == 1:  # of which not all can be joined as they are
            one, other = one.view(torch.uint8), other.view(torch.uint8)
        return torch.cat([one, split(other)]).contiguous().view(kind)

    if isinstance(first, MxFp4) and isinstance(second, MxFp4):
        return MxFp4(both(first.packed, second.packed), both(first.scales, second.scales))
    if isinstance(first, Fp8Rows) and isinstance(second, Fp8Rows):
        scales = both(first.scales[..., None], second.scales[..., None]).squeeze(-1)
        return Fp8Rows(both(first.values, second.values), scales)
    if not (isinstance(first, NvFp4) and isinstance(second, NvFp4)):
        raise KernelError(
            "weights are joined in NVFP4, MXFP4, FP8 with scales of rows and BF16, not in"
            f" {_format_of(second)}"
        )
    one, other = first.global_scale, second.global_scale
    if one.convention != other.convention:
        raise KernelError("the global scales of weights to be joined are the other way round")
    rows = (weight.packed.shape[:-1] for weight in (first, second))
    values = [
        scale.value.expand(*shape, 1) for scale, shape in zip((one, other), rows, strict=True)
    ]
    scale = GlobalScale(both(*values), one.convention)
    return NvFp4(both(first.packed, second.packed), both(first.scales, second.scales), scale)
