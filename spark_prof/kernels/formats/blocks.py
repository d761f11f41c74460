"""What all block formats share: blocks along the last dimension, and their largest magnitude."""

from __future__ import annotations

import torch

from spark_prof.kernels.errors import KernelError

_QUANTIZABLE = (torch.bfloat16, torch.float16, torch.float32)


def blocks_of(values: torch.Tensor, block: int) -> torch.Tensor:
    """The values as float32 in blocks: [..., K] becomes [..., K / block, block]."""
    if values.dtype not in _QUANTIZABLE:
        raise KernelError(f"cannot quantize {values.dtype}; give bfloat16, float16 or float32")
    if values.ndim < 2 or not values.numel() or values.shape[-1] % block:
        raise KernelError(
            f"cannot quantize shape {tuple(values.shape)}: give rows of blocks of {block}"
        )
    return values.to(torch.float32).unflatten(-1, (-1, block))


def block_amax(blocks: torch.Tensor) -> torch.Tensor:
    """The largest magnitude along the last dimension, as `max` of PTX sees it.

    NaN does not count, so that one does not take its neighbours along; a block of nothing but NaN
    gives NaN.
    """
    largest = torch.where(blocks.isnan(), -1.0, blocks.abs()).amax(-1)
    return torch.where(largest < 0, torch.nan, largest)


def quotients(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """The values divided by a number, rounded once; on a GPU `/` would take its reciprocal."""
    return values / torch.full_like(values, divisor)


def check_scales(
    kind: str,
    values: torch.Tensor,
    scales: torch.Tensor,
    *,
    types: tuple[torch.dtype, torch.dtype],
    elements: int,
    block: int,
) -> None:
    """Refuses values and scales that do not belong together.

    Args:
        values: what should be of the first type, [..., K / elements].
        scales: what should be of the second type, [..., K / block].
        elements: how many of them one entry of `values` holds.
    """
    for name, tensor, dtype in (("values", values, types[0]), ("scales", scales, types[1])):
        if tensor.dtype != dtype:
            raise KernelError(f"{kind} {name} are {tensor.dtype}; they must be {dtype}")
    columns = values.shape[-1] * elements if values.ndim else 0
    expected = (*values.shape[:-1], columns // block)
    if values.ndim < 2 or columns % block or tuple(scales.shape) != expected:
        raise KernelError(
            f"{kind} values of shape {tuple(values.shape)} do not go with scales of shape"
            f" {tuple(scales.shape)}: one scale is for {block} elements of a row"
        )
    if values.device != scales.device:
        raise KernelError(f"{kind} values are on {values.device}, scales on {scales.device}")
