"""E2M1 codes, and FP8 rows: known values, ties, exact decoding, and what is refused."""

from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.formats import (
    Fp8Rows,
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    pack_nibbles,
    quantize_fp8_rows,
    unpack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError
from tests.rows import each_row

from .values import around, every_bfloat16, every_byte, nearest, same_bits, wild_blocks


def test_rows_are_decoded_exactly_and_lie_within_half_a_step() -> None:
    values = wild_blocks(16, 96)
    weight = quantize_fp8_rows(values)
    scales = weight.scales.to(torch.float64).unsqueeze(1)
    assert same_bits(weight.decode(), e4m3_decode(weight.values) * scales)
    error = (weight.decode() - values.to(torch.float64)).abs()
    half_step = torch.maximum(values.abs().to(torch.float64) / 16, 2.0**-10 * scales)
    assert bool((error <= half_step * (1 + 1e-6)).all())
    assert weight.shape == (16, 96)


def test_a_row_of_zeros_keeps_signs() -> None:
    values = torch.tensor([[0.0, -0.0], [1e-45, -1e-45]])
    weight = quantize_fp8_rows(values)
    assert weight.scales.tolist() == [1.0, 1.0]
    assert same_bits(weight.decode(), torch.tensor([[0.0, -0.0]] * 2, dtype=torch.float64))


def test_what_does_not_belong_together_is_refused() -> None:
    values = torch.zeros(2, 4, dtype=torch.float8_e4m3fn)
    with pytest.raises(KernelError, match="one scale is for one row"):
        Fp8Rows(values, torch.ones(4))
    with pytest.raises(KernelError, match="must be float8_e4m3fn and float32"):
        Fp8Rows(values, torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(KernelError, match="need a matrix"):
        quantize_fp8_rows(torch.ones(2, 2, 2))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(KernelError, match="NaN or infinite"):
            quantize_fp8_rows(torch.tensor([[1.0, bad]]))


MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
TIES = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def by_bits(code: int) -> float:
    """Sign, two bits of exponent with bias 1, one of mantissa; exponent 0 is subnormal."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa * 0.5 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -size if sign else size


@each_row("dtype", FLOATS)
def test_codes_decode_to_what_their_bits_say(dtype: torch.dtype) -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    expected = torch.tensor([by_bits(code) for code in range(16)], dtype=dtype)
    assert same_bits(e2m1_decode(codes, dtype), expected)


def test_every_bfloat16_and_the_edges_of_float32_become_the_nearest_code() -> None:
    magnitudes = [by_bits(code) for code in range(8)]
    values = torch.cat([every_bfloat16().to(torch.float32), around([*magnitudes, *MIDPOINTS])])
    codes = e2m1_encode(values[~values.isnan()])
    values = values[~values.isnan()]
    assert torch.equal(codes >> 3, torch.signbit(values).to(torch.uint8))
    size, codes = values.abs(), codes & 7
    assert bool((codes[size < 0.125] == 0).all())
    assert bool((codes[size > 8] == 7).all())
    between = (size >= 0.125) & (size <= 8)
    assert codes[between].tolist() == [nearest(x, magnitudes) for x in size[between].tolist()]


@each_row("dtype", FLOATS)
def test_ties_saturation_zeros_and_nan(dtype: torch.dtype) -> None:
    ties = torch.tensor([*TIES, *(-tie for tie in TIES)], dtype=dtype)
    even = torch.tensor([*TIES.values(), *(-value for value in TIES.values())], dtype=dtype)
    assert same_bits(e2m1_decode(e2m1_encode(ties), dtype), even)
    nan, inf = float("nan"), float("inf")
    special = torch.tensor([6.5, 7.0, inf, -7.0, -inf, 0.0, -0.0, -0.1, nan, -nan], dtype=dtype)
    assert e2m1_encode(special).tolist() == [7, 7, 7, 15, 15, 0, 8, 8, 7, 7]


def test_the_low_nibble_is_the_even_column() -> None:
    assert pack_nibbles(torch.tensor([[0x1, 0xF]], dtype=torch.uint8)).tolist() == [[0xF1]]
    assert torch.equal(pack_nibbles(unpack_nibbles(every_byte())), every_byte())
