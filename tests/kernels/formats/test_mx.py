"""E8M0 and MXFP4 there and back; gate and up of gpt-oss apart and together again."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from spark_prof.kernels.formats import (
    MxFp4,
    deinterleave_gate_up,
    deinterleave_rows,
    e2m1_decode,
    e8m0_decode,
    interleave_gate_up,
    interleave_rows,
    mxfp4_scales,
    quantize_mxfp4,
    unpack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError
from tests.rows import each_row

from .values import every_byte, same_bits, wild_blocks


def power_of_two(value: Fraction) -> int:
    """The largest p with 2^p <= value."""
    power = value.numerator.bit_length() - value.denominator.bit_length()
    return power if Fraction(2) ** power <= value else power - 1


def exact_scale(amax: float) -> int:
    power = power_of_two(Fraction(amax))
    power += Fraction(amax) >= Fraction(7, 4) * Fraction(2) ** power
    return 254 if power > 127 else max(power - 2 + 127, 0)


def test_every_byte_decodes_exactly() -> None:
    expected = [math.ldexp(1.0, e - 127) for e in range(255)] + [math.nan]
    assert same_bits(e8m0_decode(every_byte()), torch.tensor(expected, dtype=torch.float64))
    assert e8m0_decode(every_byte(), torch.float32)[0].item() == 2.0**-127


def test_scales_of_every_power_of_two() -> None:
    near = [m + d * 2.0**-23 for m in (1.0, 1.5, 1.75, 2.0) for d in (-1, 0, 1)][1:-2]
    sizes = [math.ldexp(m, p) for p in range(-126, 128) for m in near]
    sizes += [math.ldexp(1.0, p) for p in range(-149, -126)]
    amax = torch.tensor(sizes, dtype=torch.float32)
    assert mxfp4_scales(amax).tolist() == [exact_scale(size) for size in amax.tolist()]
    assert mxfp4_scales(torch.tensor([6.5, 7.0, 0.0, math.inf, math.nan])).tolist() == [
        127, 128, 0, 254, 255,
    ]  # fmt: skip


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


def test_every_code_with_every_scale_decodes_exactly() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat_interleave(2).expand(256, 32)
    weight = MxFp4((codes[:, 0::2] | codes[:, 1::2] << 4).contiguous(), every_byte()[:, None])
    expected = [
        [math.ldexp(code, scale - 127) if scale < 255 else math.nan for code in row]
        for scale, row in enumerate(e2m1_decode(codes).tolist())
    ]
    assert same_bits(weight.decode(), torch.tensor(expected, dtype=torch.float64))
    assert same_bits(weight.decode(torch.float32).to(torch.float64)[:253], weight.decode()[:253])


def test_what_was_quantized_is_within_half_a_step() -> None:
    values = wild_blocks(32, 256)
    exact = values.to(torch.float64)
    fp4 = quantize_mxfp4(values)
    scales = e8m0_decode(fp4.scales).repeat_interleave(32, dim=1)
    # A step of 2 above 4, of a half below 2.
    step = torch.where(exact.abs() > 4 * scales, 2, torch.where(exact.abs() < 2 * scales, 0.5, 1))
    error = (fp4.decode() - exact.clamp(-6 * scales, 6 * scales)).abs()
    assert bool((error <= step * scales / 2).all())


def test_nan_takes_no_neighbour_along() -> None:
    values = torch.full((3, 32), 6.0)
    values[0, 7] = -math.nan
    values[1, 7] = -math.inf
    values[2] = math.nan
    fp4 = quantize_mxfp4(values)
    assert fp4.scales.flatten().tolist() == [127, 254, 255]
    largest, only_one = [7] * 32, [0] * 7 + [15] + [0] * 24
    assert unpack_nibbles(fp4.packed).tolist() == [largest, only_one, largest]


def test_zeros_keep_their_signs() -> None:
    values = torch.tensor([[0.0, -0.0] * 16])
    assert same_bits(quantize_mxfp4(values).decode(torch.float32), values)


def test_what_does_not_belong_together_is_refused() -> None:
    packed = torch.zeros(2, 32, dtype=torch.uint8)
    with pytest.raises(KernelError, match="MXFP4 scales are"):
        MxFp4(packed, torch.zeros(2, 2, dtype=torch.float8_e4m3fn))
    with pytest.raises(KernelError, match="one scale is for 32"):
        MxFp4(packed, torch.zeros(2, 4, dtype=torch.uint8))
    with pytest.raises(KernelError, match="blocks of 32"):
        quantize_mxfp4(torch.ones(2, 48))
