"""Reads a matrix of a vLLM model with the bits of its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import Fp8Rows, GlobalScale, MxFp4, NvFp4
from spark_prof.swaps.layers import LinearLayer
from spark_prof.swaps.weights_stored import LINEAR, StoredAs, parameter, stored_as

_NEVER_LOADED = -448.0
"""vLLM starts FP8 scales with the lowest float32; below this one was in no checkpoint."""


def read_linear(name: str, module: Any, slot: str) -> LinearLayer:
    """Reads the matrix of a linear layer, an lm_head or an embedding, of this rank.

    Args:
        name: the module's path.
        module: a torch.nn.Module whose weights are loaded and not yet laid out anew.
        slot: a word of `spec.SLOTS`.

    Raises:
        KernelError: its quantization is not one that is read, or its scales are no scales.
    """
    return LinearLayer(name, slot, _weight(module, stored_as(module, LINEAR)))


def check_scale(value: torch.Tensor, what: str) -> torch.Tensor:
    """The scales as float32.

    Raises:
        KernelError: one is not a finite number above zero.
    """
    value = value.to(torch.float32)
    if not bool((value.isfinite() & (value > 0)).all()):
        raise KernelError(f"its {what} is not above zero and finite: was it in the checkpoint?")
    return value


def _weight(module: Any, stored: StoredAs) -> NvFp4 | MxFp4 | Fp8Rows | torch.Tensor:
    weight = parameter(module, stored.weight)
    if stored.format == "plain":
        if weight.ndim != 2 or not weight.is_floating_point():
            raise KernelError(f"its weight is {weight.dtype} {tuple(weight.shape)}, no matrix")
        return weight
    if getattr(module, "weight_block_size", None) is not None:
        raise KernelError("its FP8 weights have scales of blocks; those of rows or shards are read")
    scale = parameter(module, stored.scale)
    if stored.format == "mxfp4":
        return MxFp4(weight, scale)
    if stored.format == "fp8":
        return Fp8Rows(weight, _row_scales(scale, _widths(module, weight)))
    value = check_scale(parameter(module, stored.global_scale), stored.global_scale).flatten()
    if value.numel() == 1:
        return NvFp4(weight, scale, GlobalScale(value.reshape(()), stored.convention))
    shards = GlobalScale.of_shards(value, _widths(module, weight), stored.convention)
    return NvFp4(weight, scale, shards)


def _widths(module: Any, weight: torch.Tensor) -> Sequence[int]:
    """The rows of each matrix that was fused into this one, as q, k and v."""
    widths: Sequence[int] = getattr(module, "logical_widths", None) or [weight.shape[0]]
    if sum(widths) != weight.shape[0]:
        raise KernelError(f"its shards of {list(widths)} rows do not make {weight.shape[0]}")
    return widths


def _row_scales(scale: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """A scale for each row, of scales of the tensor, of shards or of rows."""
    if scale.ndim > 1 and scale.shape[-1] != 1:
        raise KernelError(
            f"its FP8 scales have the shape {tuple(scale.shape)}; those of rows or shards are read"
        )
    rows, scale = sum(widths), scale.flatten()
    if scale.numel() == len(widths) and scale.numel() != rows:
        if bool((scale <= _NEVER_LOADED).any()):
            # A checkpoint that has the shards fused has one scale for all of them.
            scale = scale.max().expand(len(widths))
        scale = scale.repeat_interleave(torch.tensor(list(widths), device=scale.device))
    elif scale.numel() == 1:
        scale = scale.expand(rows)
    if scale.numel() != rows:
        raise KernelError(f"its {scale.numel()} FP8 scales are neither of {rows} rows nor shards")
    return check_scale(scale, "FP8 scale").contiguous()
