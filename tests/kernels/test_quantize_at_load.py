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
    got = quantize_linear("qkv", values.to(torch.bfloat16), format_, activations=weight_of(3, 64))
    assert torch.equal(got.weight.decode(), values.double())
    for deviation in (got.error, got.output_error):
        assert deviation is not None
        assert (deviation.relative_l2, deviation.worst, deviation.snr_db) == (0, 0, math.inf)


@pytest.mark.parametrize("format_", FORMATS)
def test_in_pieces_as_at_once(format_: LoadFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weight_of(100, 96), weight_of(5, 96, seed=1)
    whole = quantize_linear("o", weight, format_, activations=x)
    monkeypatch.setattr(quantize_at_load, "_ROWS_AT_ONCE", 7)
    pieces = quantize_linear("o", weight, format_, activations=x)
    assert torch.equal(whole.weight.decode(), pieces.weight.decode())
    assert pieces.error.worst_at == whole.error.worst_at
    assert pieces.error.relative_l2 == pytest.approx(whole.error.relative_l2, rel=1e-12)
    assert pieces.output_error is not None
    assert whole.output_error is not None
    assert pieces.output_error.worst_at == whole.output_error.worst_at


@pytest.mark.parametrize("format_", FORMATS)
def test_the_error_is_that_of_the_decoded_weight(format_: LoadFormat) -> None:
    weight, x = weight_of(64, 128), weight_of(9, 128, seed=2)
    got = quantize_linear("lm_head", weight, format_, activations=x)
    direct: MxFp4 | Fp8Rows = (
        quantize_mxfp4(weight) if format_ == "mxfp4" else quantize_fp8_rows(weight)
    )
    after, before = direct.decode(), weight.double()
    assert torch.equal(got.weight.decode(), after)
    off = after - before
    assert got.error.relative_l2 == pytest.approx(float(off.norm() / before.norm()))
    assert got.error.snr_db == pytest.approx(
        float(10 * torch.log10(before.square().mean() / off.square().mean()))
    )
    assert got.error.worst == float(off.abs().max())
    assert float(off.abs()[got.error.worst_at]) == got.error.worst
    assert got.output_error is not None
    given = x.double()
    assert got.output_error.relative_l2 == pytest.approx(
        float((given @ off.T).norm() / (given @ before.T).norm())
    )


@each_row("format_", FORMATS)
def test_the_kernel_s_result_is_off_by_what_was_said(format_: LoadFormat, device: str) -> None:
    weight, x = weight_of(96, 448).to(device), weight_of(9, 448, seed=2).to(device)
    got = quantize_linear("qkv", weight, format_, activations=x)
    before = x.double() @ weight.double().T
    off = (linear(x, pack_linear(got.weight)).double() - before).norm() / before.norm()
    assert got.output_error is not None
    assert float(off) == pytest.approx(got.output_error.relative_l2, abs=2**-9, rel=0.01)


def test_fp8_brings_less_error_than_mxfp4_and_takes_more_bytes() -> None:
    weight = weight_of(64, 256)
    mxfp4, fp8 = (quantize_linear("mlp", weight, kind) for kind in FORMATS)
    assert fp8.error.relative_l2 < mxfp4.error.relative_l2 / 3
    assert (mxfp4.bytes_before, mxfp4.bytes_after) == (32768, 64 * (128 + 8))
    assert fp8.bytes_after == 64 * (256 + 4)


def test_the_recipe_of_the_scales_is_used_and_named() -> None:
    weight = torch.full((2, 32), 0.125, dtype=torch.bfloat16)
    weight[:, 3] = 1.5625
    even, ceil = (quantize_linear("qkv", weight, "mxfp4", recipe=r) for r in ("even", "ceil"))
    assert even.error.worst == 0.0625
    assert ceil.error.worst == 0.125
    assert "scales even" in even.line
    assert "scales ceil" in ceil.line


@pytest.mark.parametrize("format_", FORMATS)
def test_the_line_says_that_the_weight_changed_too(format_: LoadFormat) -> None:
    got = quantize_linear("lm_head", weight_of(64, 64), format_, activations=weight_of(2, 64))
    assert got.line.startswith(f"lm_head (quantization + kernel): bf16 to {format_}, ")
    assert "of the output" in got.line


@pytest.mark.parametrize("format_", FORMATS)
def test_zeros_stay_zeros(format_: LoadFormat) -> None:
    got = quantize_linear("o", torch.zeros(8, 64, dtype=torch.bfloat16), format_)
    assert not got.weight.decode().any()
    assert got.error.relative_l2 == 0


@pytest.mark.parametrize("format_", FORMATS)
def test_the_weight_itself_stays(format_: LoadFormat) -> None:
    weight = weight_of(32, 64)
    before = weight.clone()
    quantize_linear("o", weight, format_)
    assert torch.equal(weight, before)


REFUSED = {
    "float32": (torch.zeros(8, 64), None, "bfloat16"),
    "one dimension": (torch.zeros(64, dtype=torch.bfloat16), None, "matrices"),
    "empty": (torch.zeros(0, 64, dtype=torch.bfloat16), None, "matrices"),
    "NaN": (torch.full((8, 64), torch.nan, dtype=torch.bfloat16), None, "NaN"),
    "infinity": (torch.full((8, 64), torch.inf, dtype=torch.bfloat16), None, "NaN"),
    "activations of float32": (weight_of(8, 64), torch.zeros(1, 64), "activations"),
    "narrow activations": (weight_of(8, 64), weight_of(1, 32), "activations"),
    "no activations": (weight_of(8, 64), weight_of(0, 64), "activations"),
}


@each_row(("case", "format_"), list(product(REFUSED, FORMATS)))
def test_what_cannot_be_quantized_is_refused(case: str, format_: LoadFormat) -> None:
    weight, activations, said = REFUSED[case]
    with pytest.raises(KernelError, match=said):
        quantize_linear("qkv", weight, format_, activations=activations)


def test_other_refusals() -> None:
    with pytest.raises(KernelError, match="no slot moe"):
        quantize_linear("moe", weight_of(8, 64), "fp8")
    with pytest.raises(KernelError, match="int4"):
        quantize_linear("qkv", weight_of(8, 64), "int4")  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="blocks of 32"):
        quantize_linear("qkv", weight_of(8, 48), "mxfp4")
