"""FP8 rows: exact decoding, rows apart from each other, and what is refused."""

from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import Fp8Rows, e4m3_decode, quantize_fp8_rows

from .values import same_bits, wild_blocks


def test_rows_are_decoded_exactly_and_lie_within_half_a_step() -> None:
    values = wild_blocks(16, 96)
    weight = quantize_fp8_rows(values)
    scales = weight.scales.to(torch.float64).unsqueeze(1)
    assert same_bits(weight.decode(), e4m3_decode(weight.values) * scales)
    error = (weight.decode() - values.to(torch.float64)).abs()
    half_step = torch.maximum(values.abs().to(torch.float64) / 16, 2.0**-10 * scales)
    assert bool((error <= half_step * (1 + 1e-6)).all())
    assert weight.shape == (16, 96)


def test_rows_do_not_see_each_other() -> None:
    values = wild_blocks(8, 32)
    whole = quantize_fp8_rows(values)
    for row in range(8):
        alone = quantize_fp8_rows(values[row : row + 1])
        assert same_bits(alone.decode()[0], whole.decode()[row])


def test_a_row_of_zeros_keeps_signs() -> None:
    values = torch.tensor([[0.0, -0.0], [1e-45, -1e-45]])
    weight = quantize_fp8_rows(values)
    assert weight.scales.tolist() == [1.0, 1.0]
    assert same_bits(weight.decode(), torch.tensor([[0.0, -0.0]] * 2, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(KernelError, match="NaN or infinite"):
        quantize_fp8_rows(torch.tensor([[1.0, bad]]))


def test_what_does_not_belong_together_is_refused() -> None:
    values = torch.zeros(2, 4, dtype=torch.float8_e4m3fn)
    with pytest.raises(KernelError, match="one scale is for one row"):
        Fp8Rows(values, torch.ones(4))
    with pytest.raises(KernelError, match="must be float8_e4m3fn and float32"):
        Fp8Rows(values, torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(KernelError, match="need a matrix"):
        quantize_fp8_rows(torch.ones(2, 2, 2))
