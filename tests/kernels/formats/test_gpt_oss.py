"""gpt-oss: blocks to weights and back, gate and up apart and together again."""

from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import (
    blocks_of_mxfp4,
    deinterleave_gate_up,
    deinterleave_rows,
    interleave_gate_up,
    interleave_rows,
    mxfp4_of_blocks,
    quantize_mxfp4,
)
from tests.rows import each_row

from .values import same_bits, wild_blocks


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
