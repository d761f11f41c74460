"""MXFP4 and MXFP8 there and back; gpt-oss's blocks, gate and up apart and together again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch

from spark_prof.kernels.formats import (
    MxFp4,
    MxFp8,
    MxRecipe,
    blocks_of_mxfp4,
    deinterleave_gate_up,
    deinterleave_rows,
    e2m1_decode,
    e4m3_decode,
    e8m0_decode,
    interleave_gate_up,
    interleave_rows,
    mxfp4_of_blocks,
    quantize_mxfp4,
    quantize_mxfp8,
    unpack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError
from tests.rows import each_row

from .values import every_byte, same_bits, wild_blocks


def test_blocks_there_and_back() -> None:
    weight = quantize_mxfp4(wild_blocks(12, 96).reshape(2, 6, 96))
    blocks, scales = blocks_of_mxfp4(weight)
    assert blocks.shape == (2, 6, 3, 16)
    again = mxfp4_of_blocks(blocks, scales)
    assert torch.equal(again.packed, weight.packed)
    assert torch.equal(again.scales, weight.scales)


def test_even_rows_are_the_gate() -> None:
    weight = quantize_mxfp4(wild_blocks(16, 64).reshape(2, 8, 64))
    apart = deinterleave_gate_up(weight)
    rows = weight.decode()
    assert same_bits(apart.decode(), torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1))
    assert same_bits(interleave_gate_up(apart).decode(), rows)


@each_row("dim", [0, 1, 2, -1, -2, -3])
def test_any_dimension_there_and_back(dim: int) -> None:
    rows = torch.arange(4 * 6 * 8).reshape(4, 6, 8)
    apart = deinterleave_rows(rows, dim)
    assert torch.equal(apart.select(dim, 1), rows.select(dim, 2))
    assert torch.equal(interleave_rows(apart, dim), rows)


def test_a_bias_has_no_columns() -> None:
    bias = torch.tensor([[1.0, 10.0, 2.0, 20.0]])
    assert deinterleave_rows(bias).tolist() == [[1.0, 2.0, 10.0, 20.0]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(KernelError, match="do not hold 16 bytes each"):
        mxfp4_of_blocks(torch.zeros(2, 3, 8, dtype=torch.uint8), torch.zeros(2, 3))
    with pytest.raises(KernelError, match="pairs of gate and up"):
        deinterleave_rows(torch.zeros(3))
    with pytest.raises(KernelError, match="pairs of gate and up"):
        interleave_rows(torch.zeros(2, 2), 2)


RECIPES = get_args(MxRecipe)


def every_scale() -> torch.Tensor:
    return every_byte().reshape(256, 1)


def test_every_code_with_every_scale_decodes_exactly() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat_interleave(2).expand(256, 32)
    weight = MxFp4((codes[:, 0::2] | codes[:, 1::2] << 4).contiguous(), every_scale())
    expected = [
        [math.ldexp(code, scale - 127) if scale < 255 else math.nan for code in row]
        for scale, row in enumerate(e2m1_decode(codes).tolist())
    ]
    assert same_bits(weight.decode(), torch.tensor(expected, dtype=torch.float64))
    assert same_bits(weight.decode(torch.float32).to(torch.float64)[:253], weight.decode()[:253])


def test_every_element_of_mxfp8_with_every_scale_decodes_exactly() -> None:
    elements = every_byte().expand(256, 256).contiguous().view(torch.float8_e4m3fn)
    weight = MxFp8(elements, every_scale().expand(256, 8).contiguous())
    expected = [
        [math.ldexp(element, scale - 127) if scale < 255 else math.nan for element in row]
        for scale, row in enumerate(e4m3_decode(elements).tolist())
    ]
    assert same_bits(weight.decode(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("recipe", RECIPES)
def test_which_recipes_saturate(recipe: MxRecipe) -> None:
    values = wild_blocks(64, 256)
    reach = e8m0_decode(quantize_mxfp4(values, recipe).scales).repeat_interleave(32, dim=1) * 6
    assert bool((values.abs() > reach).any()) == (recipe in ("even", "floor"))
    # 448 is 1.75 of a power of two, from where on `even` takes the next.
    reach = e8m0_decode(quantize_mxfp8(values, recipe).scales).repeat_interleave(32, dim=1) * 448
    assert bool((values.abs() > reach).any()) == (recipe == "floor")


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_was_quantized_is_within_half_a_step(recipe: MxRecipe) -> None:
    values = wild_blocks(32, 256)
    exact = values.to(torch.float64)
    fp4, fp8 = quantize_mxfp4(values, recipe), quantize_mxfp8(values, recipe)
    scales = e8m0_decode(fp4.scales).repeat_interleave(32, dim=1)
    # E2M1 has a step of 2 above 4, of a half below 2; E4M3 one of an eighth of the power of two.
    step = torch.where(exact.abs() > 4 * scales, 2, torch.where(exact.abs() < 2 * scales, 0.5, 1))
    error = (fp4.decode() - exact.clamp(-6 * scales, 6 * scales)).abs()
    assert bool((error <= step * scales / 2).all())
    scales = e8m0_decode(fp8.scales).repeat_interleave(32, dim=1)
    error = (fp8.decode() - exact.clamp(-448 * scales, 448 * scales)).abs()
    assert bool((error <= torch.maximum(exact.abs() / 16, 2.0**-10 * scales)).all())


def test_what_is_in_the_format_comes_back() -> None:
    fp4, fp8 = quantize_mxfp4(wild_blocks(8, 64), "ceil"), quantize_mxfp8(wild_blocks(8, 64))
    assert same_bits(quantize_mxfp4(fp4.decode(torch.float32), "ceil").decode(), fp4.decode())
    assert same_bits(quantize_mxfp8(fp8.decode(torch.float32)).decode(), fp8.decode())


@pytest.mark.parametrize("recipe", RECIPES)
def test_nan_takes_no_neighbour_along(recipe: MxRecipe) -> None:
    values = torch.full((3, 32), 6.0)
    values[0, 7] = -math.nan
    values[1, 7] = -math.inf
    values[2] = math.nan
    fp4, fp8 = quantize_mxfp4(values, recipe), quantize_mxfp8(values, recipe)
    assert fp4.scales.flatten().tolist() == [127, 254, 255]
    assert fp8.scales.flatten().tolist()[1:] == [254, 255]
    largest, only_one = [7] * 32, [0] * 7 + [15] + [0] * 24
    assert unpack_nibbles(fp4.packed).tolist() == [largest, only_one, largest]
    decoded = fp8.decode()
    assert decoded.isnan().sum(dim=1).tolist() == [1, 0, 32]
    assert decoded[0, 0].item() == 6.0
    assert decoded[1, 7].item() == -448 * 2.0**127


@pytest.mark.parametrize("recipe", RECIPES)
def test_zeros_keep_their_signs(recipe: MxRecipe) -> None:
    values = torch.tensor([[0.0, -0.0] * 16])
    assert same_bits(quantize_mxfp4(values, recipe).decode(torch.float32), values)
    assert same_bits(quantize_mxfp8(values, recipe).decode(torch.float32), values)


PACKED = torch.zeros(2, 32, dtype=torch.uint8)
SCALES = torch.zeros(2, 2, dtype=torch.uint8)
REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "scales of NVFP4": (
        "MXFP4 scales are",
        lambda: MxFp4(PACKED, SCALES.view(torch.float8_e4m3fn)),
    ),
    "scales of other blocks": (
        "one scale is for 32",
        lambda: MxFp4(PACKED, torch.zeros(2, 4, dtype=torch.uint8)),
    ),
    "bytes as elements": ("MXFP8 values are", lambda: MxFp8(PACKED, SCALES[:, :1])),
    "half a block": ("blocks of 32", lambda: quantize_mxfp4(torch.ones(2, 48))),
    "integers": ("cannot quantize", lambda: quantize_mxfp8(torch.ones(2, 32, dtype=torch.int32))),
}


@each_row("what", REFUSED)
def test_what_does_not_belong_together_is_refused(what: str) -> None:
    message, attempt = REFUSED[what]
    with pytest.raises(KernelError, match=message):
        attempt()
