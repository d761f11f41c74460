"""The layout 128x4 of block scales, which tensor cores of Blackwell read.

Rows are padded to 128 and columns to 4, with zeros. A tile of 128 rows and 4 columns lies in 512
bytes: row r and column c at (r % 32) * 16 + (r / 32) * 4 + c; tiles of the same rows follow each
other (cuBLAS, section 3.1.4.3.2, "1D Block Scaling Factors Layout").
"""

from __future__ import annotations

import torch

from spark_prof.kernels.errors import KernelError

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
        rows: how many there were before padding.
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
