"""E4M3 against its definition, all bytes and all of bfloat16."""

from __future__ import annotations

from itertools import pairwise

import torch

from spark_prof.kernels.formats import e4m3_decode, e4m3_encode

from .values import around, every_byte, nearest, same_bits


def by_bits(code: int) -> float:
    """Sign, four bits of exponent with bias 7, three of mantissa; no infinity, one NaN a sign."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    scale, one = (2.0**-6, 0) if exponent == 0 else (2.0 ** (exponent - 7), 1)
    return (-1.0 if sign else 1.0) * (one + mantissa / 8) * scale


MAGNITUDES = [by_bits(code) for code in range(127)]


def test_all_bytes_decode_to_what_their_bits_say() -> None:
    expected = torch.tensor([by_bits(code) for code in range(256)], dtype=torch.float64)
    assert same_bits(e4m3_decode(every_byte().view(torch.float8_e4m3fn)), expected)


def test_values_become_the_nearest_code() -> None:
    midpoints = [(a + b) / 2 for a, b in pairwise(MAGNITUDES)]
    values = torch.cat([around(midpoints), around(MAGNITUDES), around([3e38, 464.0, 480.0])])
    codes = e4m3_encode(values).view(torch.uint8).tolist()
    expected = [
        nearest(value, MAGNITUDES) | sign << 7
        for value, sign in zip(values.tolist(), torch.signbit(values).tolist(), strict=True)
    ]
    assert codes == expected


def test_infinity_saturates_and_nan_is_the_positive_one() -> None:
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([449.0, 465.0, inf, -inf, nan, -nan, -0.0])
    codes = e4m3_encode(special).view(torch.uint8).tolist()
    assert codes == [0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x7F, 0x80]
