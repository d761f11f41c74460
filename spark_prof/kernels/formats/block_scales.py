"""E8M0, the power of two that scales a block of MXFP4 and MXFP8, and the layout 128x4 of scales.

Tensor cores of Blackwell read that layout. Rows are padded to 128 and columns to 4, with zeros. A
tile of 128 rows and 4 columns lies in 512 bytes: row r and column c at
(r % 32) * 16 + (r / 32) * 4 + c; tiles of the same rows follow each other (cuBLAS, section
3.1.4.3.2, "1D Block Scaling Factors Layout").
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from spark_prof.kernels.kernel_error import KernelError

_ROWS = 128
_COLUMNS = 4


def swizzle_128x4(scales: torch.Tensor) -> torch.Tensor:
    """Scales in the order 128x4.

    Args:
        scales: of any type of one byte, [..., rows, columns].

    Returns:
        The same type, [..., padded rows, padded columns]; the shape only says how many there are.
    """
    if scales.element_size() != 1 or scales.ndim < 2:
        raise KernelError(
            f"cannot swizzle {scales.dtype} of shape {tuple(scales.shape)}; give scales of one byte"
            " in rows and columns"
        )
    *stack, rows, columns = scales.shape
    tall, wide = _padded(rows, columns)
    padding = (0, wide - columns, 0, tall - rows)
    padded = torch.nn.functional.pad(scales.view(torch.uint8), padding)
    tiles = padded.unflatten(-1, (-1, 4)).unflatten(-3, (-1, 4, 32))
    # From tile row, r / 32, r % 32, tile column, c.
    swizzled = tiles.transpose(-4, -2).contiguous()
    return swizzled.reshape(*stack, tall, wide).view(scales.dtype)


def unswizzle_128x4(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales in rows and columns again, without what they were padded with.

    Args:
        swizzled: what `swizzle_128x4` returns, or one matrix of it as a flat tensor.
    """
    tall, wide = _padded(rows, columns)
    flat = swizzled.ndim == 1 and swizzled.numel() == tall * wide
    if swizzled.element_size() != 1 or not (flat or tuple(swizzled.shape[-2:]) == (tall, wide)):
        raise KernelError(
            f"{swizzled.dtype} of shape {tuple(swizzled.shape)} is not {rows} x {columns} scales in"
            f" the order 128x4, which are {tall} x {wide} bytes"
        )
    stack = () if flat else swizzled.shape[:-2]
    tiles = swizzled.view(torch.uint8).reshape(*stack, tall // 128, wide // 4, 32, 4, 4)
    padded = tiles.transpose(-4, -2).reshape(*stack, tall, wide)
    return padded[..., :rows, :columns].contiguous().view(swizzled.dtype)


def _padded(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // _ROWS) * _ROWS, -(-columns // _COLUMNS) * _COLUMNS


MX_BLOCK = 32

MxRecipe = Literal["even", "ceil", "floor"]
"""How the scale of a block follows from its largest magnitude.

`even`: the magnitude's power of two, the next one from 1.75 of it on (vLLM's `downcast_to_mxfp`,
compressed-tensors). With E2M1 a magnitude between 1.5 and 1.75 of its power of two saturates.
`ceil`: the smallest scale with which nothing saturates (DeepSeek; vLLM's and FlashInfer's MXFP8).
`floor`: the magnitude's power of two (OCP Microscaling Formats 1.0, section 6.3); saturates above
1.5 with E2M1, above 1.75 with E4M3.
"""

_BIAS = 127
_NAN = 255
_LARGEST = 254
_INFINITE = 128


def e8m0_decode(scales: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """2^(e - 127) of each byte e, and NaN of 255 (OCP Microscaling Formats 1.0, section 5.4.1).

    Byte 0 is 2^-127, which float32 holds only as a subnormal number.
    """
    powers = torch.ldexp(
        torch.ones_like(scales, dtype=torch.float64), scales.to(torch.int32) - _BIAS
    )
    return torch.where(scales == _NAN, torch.nan, powers).to(dtype)


def e8m0_scales(amax: torch.Tensor, largest: float, recipe: MxRecipe) -> torch.Tensor:
    """The scale of blocks, from their largest magnitudes.

    Zeros get the smallest scale, infinity the largest (254), NaN NaN (255).

    Args:
        amax: float32 of any shape, no negative numbers.
        largest: the largest value of the element format, 6 or 448.

    Returns:
        uint8 of the same shape.
    """
    if recipe not in get_args(MxRecipe):
        raise KernelError(f"MX formats have no recipe {recipe}; give one of {get_args(MxRecipe)}")
    # Both as mantissa in [0.5, 1) times a power of two, so that no logarithm rounds.
    mantissa, power = torch.frexp(amax)
    largest_mantissa, largest_power = math.frexp(largest)
    infinite = amax.isinf()
    if recipe == "even":
        power = power + (mantissa >= 0.875)
        # vLLM rounds up as a float32, which may become infinity.
        infinite = infinite | (power > _INFINITE)
    elif recipe == "ceil":
        power = power + (mantissa > largest_mantissa)
    scales = (power - largest_power + _BIAS).clamp(0, _LARGEST)
    scales = torch.where(amax == 0, 0, torch.where(infinite, _LARGEST, scales))
    return torch.where(amax.isnan(), _NAN, scales).to(torch.uint8)
