from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.norm_quantize import codes, moved_bytes, norm_quantize
from spark_prof.kernels.quantize import quantize_rows
from spark_prof.kernels.quantized_rows import ROW_FORMATS, RowFormat
from tests.kernels.row_oracles import mean_of_squares, normed_rows, quantized_rows
from tests.kernels.rows import assert_quantized, odd_rows, poisoned, rows, scale_for
from tests.rows import each_row

_FORMATS = [*ROW_FORMATS]
_EPSILON = 1e-6


def _weight(columns: int, device: str) -> torch.Tensor:
    return rows(1, columns, device, seed=99, spread=0.5)[0]


@each_row("with_residual", [False, True])
@each_row("row_format", _FORMATS)
@each_row(("count", "columns"), [(1, 2880), (5, 2048), (3, 64), (2, 1856), (1, 8224), (256, 2112)])
def test_rows_are_those_of_the_separate_kernels(
    count: int, columns: int, row_format: RowFormat, with_residual: bool, device: str
) -> None:
    """8224 columns are more than a block has threads for; from 256 rows on a block is smaller."""
    x, weight = rows(count, columns, device, spread=3.0), _weight(columns, device)
    residual = rows(count, columns, device, seed=1, spread=3.0) if with_residual else None
    normed, kept = normed_rows(x, weight, _EPSILON, residual)
    scale, out = scale_for(row_format, normed), poisoned(x, row_format, True)
    norm_quantize(x, weight, _EPSILON, row_format, residual=residual, global_scale=scale, out=out)
    assert_quantized(out, quantized_rows(normed, row_format, scale))
    if residual is not None:
        assert torch.equal(residual, kept)


@each_row("row_format", _FORMATS)
def test_every_number_of_rows_of_a_decode_step(row_format: RowFormat, device: str) -> None:
    weight = _weight(96, device)
    for count in range(1, 17):
        x, residual = rows(count, 96, device, seed=count), rows(count, 96, device, seed=-count)
        normed, kept = normed_rows(x, weight, _EPSILON, residual)
        scale = scale_for(row_format, normed)
        out = norm_quantize(x, weight, _EPSILON, row_format, residual=residual, global_scale=scale)
        assert_quantized(out, quantized_rows(normed, row_format, scale))
        assert torch.equal(residual, kept)


@each_row("row_format", _FORMATS)
def test_odd_rows(row_format: RowFormat, device: str) -> None:
    """NaN takes all of its row along, infinity makes the others of its row 0."""
    x, weight = odd_rows(device), _weight(64, device)
    normed, _ = normed_rows(x, weight, _EPSILON)
    scale = scale_for(row_format, normed)
    out = norm_quantize(x, weight, _EPSILON, row_format, global_scale=scale, swizzled=False)
    assert_quantized(out, quantized_rows(normed, row_format, scale))


@each_row("with_residual", [False, True])
@each_row("columns", [256, 2880, 8224])
@each_row("seed", [0, 1])
def test_squares_are_added_in_the_order_of_vllm(
    columns: int, with_residual: bool, seed: int, device: str
) -> None:
    """Epsilon takes nearly all of the mean away: what is left shows its last bit."""
    x, weight = rows(1, columns, device, seed=seed, spread=3.0), _weight(columns, device)
    residual = rows(1, columns, device, seed=seed + 2, spread=3.0) if with_residual else None
    kept = x if residual is None else x + residual
    epsilon = -mean_of_squares(kept, by_pairs=with_residual).item() * (1 - 2.0**-16)
    normed, _ = normed_rows(x, weight, epsilon, residual)
    out = norm_quantize(x, weight, epsilon, "mxfp8", residual=residual)
    assert_quantized(out, quantized_rows(normed, "mxfp8"))


@each_row("with_residual", [False, True])
def test_squares_of_a_thread_are_added_in_the_order_of_vllm(
    with_residual: bool, device: str
) -> None:
    """As above, with nothing but the eight values of one thread, of very different sizes."""
    weight = _weight(64, device)
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        x = torch.zeros(1, 64)
        x[0, :8] = torch.exp2(torch.rand(8, generator=random) * 12)
        x = x.to(torch.bfloat16).to(device)
        residual = torch.zeros_like(x) if with_residual else None
        epsilon = -mean_of_squares(x, by_pairs=with_residual).item() * (1 - 2.0**-16)
        normed, _ = normed_rows(x, weight, epsilon, residual)
        out = norm_quantize(x, weight, epsilon, "mxfp8", residual=residual)
        assert_quantized(out, quantized_rows(normed, "mxfp8"))


def test_products_are_taken_from_the_left(device: str) -> None:
    """All pairs of significands, with an epsilon for which the other order gives other codes."""
    significands = torch.arange(0x3F80, 0x4000, dtype=torch.int32).to(torch.int16)
    values = significands.view(torch.bfloat16).to(device)
    x, weight, epsilon = values.repeat(128)[None], values.repeat_interleave(128), 4.734375
    normed, _ = normed_rows(x, weight, epsilon)
    out = norm_quantize(x, weight, epsilon, "mxfp8")
    assert_quantized(out, quantized_rows(normed, "mxfp8"))


def test_rows_may_lie_apart(device: str) -> None:
    x, residual = rows(3, 192, device)[:, 64:128], rows(3, 128, device, seed=1)[:, 64:]
    weight = _weight(64, device)
    normed, kept = normed_rows(x, weight, _EPSILON, residual)
    out = norm_quantize(x, weight, _EPSILON, "mxfp8", residual=residual)
    assert_quantized(out, quantized_rows(normed, "mxfp8"))
    assert torch.equal(residual, kept)


@pytest.mark.parametrize("with_residual", [False, True])
def test_the_oracle_is_a_norm(with_residual: bool) -> None:
    x, weight = rows(3, 2880, "cpu"), _weight(2880, "cpu")
    residual = rows(3, 2880, "cpu", seed=1) if with_residual else None
    normed, kept = normed_rows(x, weight, _EPSILON, residual)
    exact = kept.double() / (kept.double().square().mean(-1, keepdim=True) + _EPSILON).sqrt()
    torch.testing.assert_close(normed.double(), exact * weight.double(), rtol=2**-8, atol=0)
    if residual is not None:
        torch.testing.assert_close(
            kept.double(), x.double() + residual.double(), rtol=2**-8, atol=0
        )


@each_row("count", [1, 16, 300])
@each_row("columns", [2048, 2880, 8192])
def test_rows_are_those_of_vllm(count: int, columns: int) -> None:
    """Where vLLM and a GPU are: its kernel, then our quantization, against the one pass."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    ops = pytest.importorskip("vllm._custom_ops")
    x, residual = rows(count, columns, "cuda", spread=3.0), rows(count, columns, "cuda", seed=1)
    weight = _weight(columns, "cuda")
    plain, added, kept = torch.empty_like(x), x.clone(), residual.clone()
    ops.rms_norm(plain, x, weight, _EPSILON)
    ops.fused_add_rms_norm(added, kept, weight, _EPSILON)
    for normed, given in ((plain, None), (added, residual)):
        for row_format in _FORMATS:
            scale, before = scale_for(row_format, normed), None if given is None else given.clone()
            separate = quantize_rows(normed, row_format, global_scale=scale)
            fused = norm_quantize(
                x, weight, _EPSILON, row_format, residual=before, global_scale=scale
            )
            assert_quantized(fused, separate.unpadded(scale))
            assert before is None or torch.equal(before, kept)


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    x, weight = rows(3, 2880, "cpu"), _weight(2880, "cpu")
    for row_format in _FORMATS:
        out = poisoned(x, row_format, True)
        moved = [x, weight, out.codes, out.scales]
        plain = sum(t.numel() * t.element_size() for t in moved)
        assert moved_bytes(3, 2880, row_format, residual=False) == plain
        assert moved_bytes(3, 2880, row_format) == plain + 2 * x.numel() * x.element_size()


def test_each_constant_is_a_kernel_of_its_own() -> None:
    assert len({code.label for code in codes()}) == len(codes())


def test_what_does_not_fit_is_refused(device: str) -> None:
    x, weight = rows(2, 64, device), _weight(64, device)
    long = rows(1, 32800, device)
    for message, call in (
        ("weight has 128 columns", lambda: norm_quantize(x, weight.repeat(2), 1e-6, "mxfp8")),
        ("weight is torch.float32", lambda: norm_quantize(x, weight.float(), 1e-6, "mxfp8")),
        ("residual has 1 rows", lambda: norm_quantize(x, weight, 1e-6, "mxfp8", residual=x[:1])),
        ("residual has 32", lambda: norm_quantize(x, weight, 1e-6, "mxfp8", residual=x[:, :32])),
        ("32768 is the most", lambda: norm_quantize(long, long[0], 1e-6, "mxfp8")),
        ("weight is on meta", lambda: norm_quantize(x, weight.to("meta"), 1e-6, "mxfp8")),
    ):
        with pytest.raises(KernelError, match=message):
            call()
