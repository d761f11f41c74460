"""E8M0 scales by rule, and the order 128x4 against its formula, there and back."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, cast

import pytest
import torch

from spark_prof.kernels.formats import (
    MxRecipe,
    e8m0_decode,
    e8m0_scales,
    swizzle_128x4,
    unswizzle_128x4,
)
from spark_prof.kernels.kernel_error import KernelError
from tests.rows import each_row

from .values import every_byte, same_bits

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


LARGEST = {"e2m1": 6.0, "e4m3": 448.0}
RECIPES = ("even", "ceil", "floor")
STEP = 2.0**-23
MANTISSAS = [m + d * STEP for m in (1.0, 1.5, 1.75, 2.0) for d in (-1, 0, 1)][1:-2]
# Magnitude, then the scale's power of two for E2M1 by each recipe: where each of them saturates.
EXAMPLES = [
    (6.0, {"even": 0, "ceil": 0, "floor": 0}),
    (6.5, {"even": 0, "ceil": 1, "floor": 0}),
    (7.0, {"even": 1, "ceil": 1, "floor": 0}),
    (8.0, {"even": 1, "ceil": 1, "floor": 1}),
]


def power_of_two(value: Fraction) -> int:
    """The largest p with 2^p <= value."""
    power = value.numerator.bit_length() - value.denominator.bit_length()
    return power if Fraction(2) ** power <= value else power - 1


def exact_scale(amax: float, largest: float, recipe: str) -> int:
    size, most = Fraction(amax), Fraction(largest)
    power, offset = power_of_two(size), power_of_two(most)
    if recipe == "even":
        power += size >= Fraction(7, 4) * Fraction(2) ** power
        if power > 127:
            return 254
    elif recipe == "ceil":
        power += size > most * Fraction(2) ** (power - offset)
    return min(max(power - offset + 127, 0), 254)


def test_every_byte_decodes_exactly() -> None:
    expected = [math.ldexp(1.0, e - 127) for e in range(255)] + [math.nan]
    assert same_bits(e8m0_decode(every_byte()), torch.tensor(expected, dtype=torch.float64))
    assert e8m0_decode(every_byte(), torch.float32)[0].item() == 2.0**-127


@each_row("recipe", RECIPES)
@each_row("element", LARGEST)
def test_scales_of_every_power_of_two(element: str, recipe: MxRecipe) -> None:
    sizes = [math.ldexp(m, p) for p in range(-126, 128) for m in MANTISSAS]
    sizes += [math.ldexp(1.0, p) for p in range(-149, -126)]
    amax = torch.tensor(sizes, dtype=torch.float32)
    found = e8m0_scales(amax, LARGEST[element], recipe).tolist()
    assert found == [exact_scale(size, LARGEST[element], recipe) for size in amax.tolist()]


@each_row(("amax", "powers"), EXAMPLES)
def test_where_the_recipes_part(amax: float, powers: dict[MxRecipe, int]) -> None:
    for recipe, power in powers.items():
        assert e8m0_scales(torch.tensor([amax]), 6.0, recipe).tolist() == [power + 127]


@each_row("recipe", RECIPES)
@each_row("element", LARGEST)
def test_zero_infinity_and_nan(element: str, recipe: MxRecipe) -> None:
    amax = torch.tensor([0.0, math.inf, math.nan])
    assert e8m0_scales(amax, LARGEST[element], recipe).tolist() == [0, 254, 255]


def test_another_recipe_is_refused() -> None:
    with pytest.raises(KernelError, match="no recipe round"):
        e8m0_scales(torch.ones(1), 6.0, cast(Any, "round"))
