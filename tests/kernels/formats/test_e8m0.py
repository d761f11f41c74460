"""E8M0 against its definition: every byte, and scales of every power of two by exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, cast

import pytest
import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import MxRecipe, e8m0_decode, e8m0_scales
from tests.rows import each_row

from .values import every_byte, same_bits

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
