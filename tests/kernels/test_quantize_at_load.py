"""Weights that are quantized at load: what comes out, the error said of it, and what is refused."""

from __future__ import annotations

import math
from itertools import product

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels import quantize_at_load
from spark_prof.kernels.dense import linear
from spark_prof.kernels.formats import Fp8Rows, MxFp4, quantize_fp8_rows, quantize_mxfp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.quantize_at_load import LoadFormat, quantize_linear
from tests.rows import each_row

FORMATS: tuple[LoadFormat, ...] = ("mxfp4", "fp8")
CODES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -3.0, -6.0])


def weight_of(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(torch.bfloat16)


@pytest.mark.parametrize("format_", FORMATS)
def test_what_the_format_holds_comes_back_without_error(format_: LoadFormat) -> None:
    codes = torch.randint(len(CODES), (48, 64), generator=torch.Generator().manual_seed(1))
    values = CODES[codes] / 4
    values[:, ::32] = 1.5
    values[:, 0] = 1.75 if format_ == "fp8" else 1.5
    got = quantize_linear("qkv", values.to(torch.bfloat16), format_)
    assert torch.equal(got.weight.decode(), values.double())
    assert (got.relative_error, got.worst) == (0, 0)
    assert "0.00% (inf dB, worst element 0 off)" in got.line


@pytest.mark.parametrize("format_", FORMATS)
def test_in_pieces_as_at_once(format_: LoadFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weight_of(100, 96)
    whole = quantize_linear("o", weight, format_)
    monkeypatch.setattr(quantize_at_load, "_ROWS_AT_ONCE", 7)
    pieces = quantize_linear("o", weight, format_)
    assert torch.equal(whole.weight.decode(), pieces.weight.decode())
    assert pieces.worst == whole.worst
    assert pieces.relative_error == pytest.approx(whole.relative_error, rel=1e-12)


@pytest.mark.parametrize("format_", FORMATS)
def test_the_error_is_that_of_the_decoded_weight(format_: LoadFormat) -> None:
    weight = weight_of(64, 128)
    before = weight.clone()
    got = quantize_linear("lm_head", weight, format_)
    assert torch.equal(weight, before), "the weight itself stays"
    direct: MxFp4 | Fp8Rows = (
        quantize_mxfp4(weight) if format_ == "mxfp4" else quantize_fp8_rows(weight)
    )
    assert torch.equal(got.weight.decode(), direct.decode())
    off = direct.decode() - weight.double()
    relative = off.norm() / weight.double().norm()
    assert got.relative_error == pytest.approx(float(relative))
    assert got.worst == float(off.abs().max())
    assert got.line.startswith(f"lm_head (quantization + kernel): bf16 to {format_}, ")
    assert f"{relative:.2%} ({-20 * math.log10(relative):.1f} dB" in got.line


@each_row("format_", FORMATS)
def test_the_kernel_s_result_is_that_of_the_quantized_weight(
    format_: LoadFormat, device: str
) -> None:
    weight, x = weight_of(96, 448).to(device), weight_of(9, 448, seed=2).to(device)
    got = quantize_linear("qkv", weight, format_).weight
    exact = x.double() @ got.decode().T
    off = (linear(x, pack_linear(got)).double() - exact).norm() / exact.norm()
    assert float(off) < 2**-9


def test_fp8_brings_less_error_than_mxfp4_and_takes_more_bytes() -> None:
    weight = weight_of(64, 256)
    mxfp4, fp8 = (quantize_linear("mlp", weight, kind) for kind in FORMATS)
    assert fp8.relative_error < mxfp4.relative_error / 3
    assert (mxfp4.bytes_before, mxfp4.bytes_after) == (32768, 64 * (128 + 8))
    assert fp8.bytes_after == 64 * (256 + 4)


REFUSED = {
    "float32": (torch.zeros(8, 64), "bfloat16"),
    "one dimension": (torch.zeros(64, dtype=torch.bfloat16), "matrices"),
    "empty": (torch.zeros(0, 64, dtype=torch.bfloat16), "matrices"),
    "NaN": (torch.full((8, 64), torch.nan, dtype=torch.bfloat16), "NaN"),
    "infinity": (torch.full((8, 64), torch.inf, dtype=torch.bfloat16), "NaN"),
}


@each_row(("case", "format_"), list(product(REFUSED, FORMATS)))
def test_what_cannot_be_quantized_is_refused(case: str, format_: LoadFormat) -> None:
    weight, said = REFUSED[case]
    with pytest.raises(KernelError, match=said):
        quantize_linear("qkv", weight, format_)


def test_other_refusals() -> None:
    with pytest.raises(KernelError, match="no slot moe"):
        quantize_linear("moe", weight_of(8, 64), "fp8")
    with pytest.raises(KernelError, match="blocks of 32"):
        quantize_linear("qkv", weight_of(8, 48), "mxfp4")
