from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.formats import GlobalScale, quantize_mxfp8, quantize_nvfp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.quantize import codes, moved_bytes, quantize_rows
from spark_prof.kernels.quantized_rows import ROW_FORMATS, RowFormat
from tests.kernels.row_oracles import quantized_rows
from tests.kernels.rows import assert_quantized, odd_rows, poisoned, rows, scale_for, some_rows
from tests.rows import each_row

_FORMATS = [*ROW_FORMATS]


@each_row("swizzled", [False, True])
@each_row("row_format", _FORMATS)
def test_rows_are_the_oracles(row_format: RowFormat, swizzled: bool, device: str) -> None:
    for x in some_rows(row_format, device):
        scale = scale_for(row_format, x)
        out = poisoned(x, row_format, swizzled)
        got = quantize_rows(x, row_format, global_scale=scale, swizzled=swizzled, out=out)
        assert got is out
        assert_quantized(out, quantized_rows(x, row_format, scale))


@each_row("row_format", _FORMATS)
def test_every_number_of_rows_of_a_decode_step(row_format: RowFormat, device: str) -> None:
    for count in range(1, 17):
        x = rows(count, 96, device, seed=count)
        scale = scale_for(row_format, x)
        out = quantize_rows(x, row_format, global_scale=scale)
        assert_quantized(out, quantized_rows(x, row_format, scale))


@each_row("factor", [1.0, 2.0**-20, 3e7])
@each_row("row_format", _FORMATS)
def test_odd_blocks(row_format: RowFormat, factor: float, device: str) -> None:
    x = odd_rows(device)
    given = GlobalScale(torch.tensor(factor, device=device), "divides")
    scale = given if row_format == "nvfp4" else None
    out = quantize_rows(x, row_format, global_scale=scale)
    assert_quantized(out, quantized_rows(x, row_format, scale))


def test_scales_between_two_of_e4m3(device: str) -> None:
    """Every significand as a block's largest, with global scales that bring some half-way."""
    largest = torch.arange(0x3F80, 0x4100, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = largest.repeat_interleave(16)[None].to(device)
    for value in (18 / 16, 27 / 24, 45 / 48, 60 / 16):
        scale = GlobalScale(torch.tensor(value, device=device), "divides")
        out = quantize_rows(x, "nvfp4", global_scale=scale)
        assert_quantized(out, quantized_rows(x, "nvfp4", scale))


def test_nan_and_infinity_become_what_is_said(device: str) -> None:
    x = odd_rows(device)
    infinite, nan = x.isinf().nonzero().tolist(), x.isnan().nonzero().tolist()
    one = GlobalScale(torch.ones(1, device=device), "divides")
    nvfp4 = quantize_rows(x, "nvfp4", global_scale=one).unpadded(one).decode()
    mxfp8 = quantize_rows(x, "mxfp8").unpadded().decode()
    for row, column in infinite:
        assert abs(nvfp4[row, column].item()) == 6 * 448
        assert abs(mxfp8[row, column].item()) == 448 * 2.0**127
    for row, column in nan:
        alone = x[row, column // 32 * 32 :][:32].isnan().all()
        assert alone or nvfp4[row, column] > 0
        assert mxfp8[row, column].isnan()


def test_the_oracle_is_the_format_where_reciprocals_are_rounded() -> None:
    x = torch.cat([rows(8, 64, "cpu"), odd_rows("cpu")])
    scale = scale_for("nvfp4", x)
    ours, theirs = quantized_rows(x, "nvfp4", scale), quantize_nvfp4(x, scale, "reciprocal")
    assert torch.equal(ours.packed, theirs.packed)
    assert torch.equal(ours.scales.view(torch.uint8), theirs.scales.view(torch.uint8))


def test_rows_may_lie_apart(device: str) -> None:
    wide = rows(4, 256, device)
    x = wide[:, 64:192]
    assert_quantized(quantize_rows(x, "mxfp8"), quantize_mxfp8(x))


@each_row("row_format", _FORMATS)
def test_nothing_behind_the_rows_is_written(row_format: RowFormat, device: str) -> None:
    x = rows(3, 96, device)
    out, whole = poisoned(x, row_format, True), poisoned(x, row_format, True, count=6)
    part = type(out)(row_format, whole.codes[:3], out.scales, True)
    quantize_rows(x, row_format, global_scale=scale_for(row_format, x), out=part)
    assert (whole.codes[3:].view(torch.uint8) == 0xA5).all()


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    x = rows(3, 2880, "cpu")
    for row_format in _FORMATS:
        for swizzled in (False, True):
            out = poisoned(x, row_format, swizzled)
            expected = sum(t.numel() * t.element_size() for t in (x, out.codes, out.scales))
            assert moved_bytes(3, 2880, row_format, swizzled) == expected


def test_each_constant_is_a_kernel_of_its_own() -> None:
    assert len({code.label for code in codes()}) == len(codes()) == 4


def _refused(device: str) -> list[tuple[str, object]]:
    good = rows(2, 64, device)
    one = GlobalScale(torch.ones(1, device=device), "divides")
    other = GlobalScale(torch.ones(1, device=device), "multiplies")
    three = GlobalScale(torch.ones(3, 1, device=device), "divides")
    odd = rows(2, 80, device)
    out = poisoned(good, "nvfp4", True)
    return [
        ("give bfloat16", lambda: quantize_rows(good.float(), "mxfp8")),
        ("give bfloat16", lambda: quantize_rows(good[0], "mxfp8")),
        ("give 1 to 4096", lambda: quantize_rows(good[:0], "mxfp8")),
        ("whole blocks of 32", lambda: quantize_rows(odd, "mxfp8")),
        ("whole blocks of 16", lambda: quantize_rows(odd[:, :8], "nvfp4", global_scale=one)),
        ("multiples of 16 bytes", lambda: quantize_rows(odd[:, 1:33], "mxfp8")),
        ("multiples of 16 bytes", lambda: quantize_rows(good.repeat(1, 2)[:, ::2], "mxfp8")),
        ("needs the global scale", lambda: quantize_rows(good, "nvfp4")),
        ("no global scale", lambda: quantize_rows(good, "mxfp8", global_scale=one)),
        ("one that divides", lambda: quantize_rows(good, "nvfp4", global_scale=other)),
        ("give one", lambda: quantize_rows(good, "nvfp4", global_scale=three)),
        ("no rows are quantized to fp4", lambda: quantize_rows(good, "fp4")),  # type: ignore[arg-type]
        ("out is for nvfp4", lambda: quantize_rows(good, "mxfp8", out=out)),
        ("the codes of out", lambda: quantize_rows(odd, "nvfp4", global_scale=one, out=out)),
        ("rows are on meta", lambda: quantize_rows(good.to("meta"), "nvfp4", global_scale=one)),
    ]


def test_what_does_not_fit_is_refused(device: str) -> None:
    for message, call in _refused(device):
        with pytest.raises(KernelError, match=message):
            call()  # type: ignore[operator]
