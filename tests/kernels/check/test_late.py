"""What writes activations late, and which arguments of a call are such."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.check.inputs import make_activations, surrounded
from spark_prof.kernels.check.late import WRITE_LATE, late_rows
from spark_prof.kernels.registry import ARCHITECTURES
from spark_prof.kernels.runtime.compiler import compile_code


def test_rows_are_erased_and_written_again(device: str) -> None:
    x = surrounded(make_activations("NaN and infinity", 3, 40, 1, device, "rows apart"))
    before = x.clone()
    (rows,) = late_rows((x, None))
    rows.erase()
    assert torch.isnan(x).all()
    rows.write()
    assert torch.equal(x.view(torch.int16), before.view(torch.int16))


def test_rows_in_reverse_are_other_values_and_then_the_same_again(device: str) -> None:
    x = surrounded(make_activations("plain", 3, 40, 1, device))
    before = x.clone()
    (rows,) = late_rows((x,))
    for expected in (before.flip(0, 1), before):
        rows.reverse()
        rows.write()
        assert torch.equal(x, expected)


def test_late_are_floats_with_a_row_for_each_token(device: str) -> None:
    x, residual, cache = (torch.ones(3, 8, dtype=torch.bfloat16, device=device) for _ in range(3))
    bias = torch.ones(3, dtype=torch.bfloat16, device=device)
    positions = torch.ones(3, 1, dtype=torch.int64, device=device)
    weight = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
    arguments = (x, residual, x[:, :4], bias, positions, weight, cache, None)
    late = late_rows(arguments, outputs=(6,))
    addresses = [rows.memory.data_ptr() for rows in late]
    assert addresses == [x.data_ptr(), residual.data_ptr()]


def test_it_compiles_for_every_target() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    assert all(compile_code(WRITE_LATE, arch) for arch in ARCHITECTURES)
