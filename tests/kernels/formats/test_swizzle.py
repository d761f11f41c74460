"""The order 128x4 against its formula, there and back, with every kind of padding."""

from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import swizzle_128x4, unswizzle_128x4
from tests.rows import each_row

# Rows and columns: whole tiles, one row, rows or columns that fill no tile, and gpt-oss: 2880 / 32.
SHAPES = [(128, 4), (1, 4), (130, 5), (256, 90), (127, 1), (300, 12)]


def numbered(*shape: int) -> torch.Tensor:
    """Bytes that are never 0, so that padding shows."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 255 + 1).to(torch.uint8).reshape(shape)


@each_row(("rows", "columns"), SHAPES)
def test_every_scale_is_where_the_formula_says(rows: int, columns: int) -> None:
    scales = numbered(rows, columns)
    swizzled = swizzle_128x4(scales)
    tall, wide = (rows + 127) // 128 * 128, (columns + 3) // 4 * 4
    assert swizzled.shape == (tall, wide)
    expected = [0] * (tall * wide)
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * (wide // 4) + c // 4
            expected[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = int(scales[r, c])
    assert swizzled.flatten().tolist() == expected


@each_row("dtype", [torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu])
@each_row("stack", [(), (3,), (2, 3)])
def test_there_and_back(stack: tuple[int, ...], dtype: torch.dtype) -> None:
    scales = numbered(*stack, 130, 6).view(dtype)
    back = unswizzle_128x4(swizzle_128x4(scales), 130, 6)
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), scales.view(torch.uint8))


def test_a_view_of_rows_and_a_flat_buffer() -> None:
    scales = numbered(260, 12)[::2, 1:7]
    flat = swizzle_128x4(scales).flatten()
    assert torch.equal(unswizzle_128x4(flat, 130, 6), scales)


def test_what_is_no_such_layout_is_refused() -> None:
    with pytest.raises(KernelError, match="scales of one byte"):
        swizzle_128x4(torch.ones(128, 4))
    with pytest.raises(KernelError, match="scales of one byte"):
        swizzle_128x4(torch.ones(128, dtype=torch.uint8))
    with pytest.raises(KernelError, match="which are 256 x 8 bytes"):
        unswizzle_128x4(torch.zeros(128, 8, dtype=torch.uint8), 130, 5)
    with pytest.raises(KernelError, match="which are 128 x 4 bytes"):
        unswizzle_128x4(torch.zeros(128, 4), 128, 4)
