from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.activation_quantize import activation_quantize, codes, moved_bytes
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.quantize import quantize_rows
from spark_prof.kernels.quantized_rows import ROW_FORMATS, RowFormat
from tests.kernels.formats.values import every_bfloat16
from tests.kernels.row_oracles import activated_rows, quantized_rows
from tests.kernels.rows import assert_quantized, odd_rows, poisoned, rows, scale_for
from tests.rows import each_row

_FORMATS = [*ROW_FORMATS]


@each_row("swizzled", [False, True])
@each_row("row_format", _FORMATS)
def test_rows_are_those_of_the_separate_kernels(
    row_format: RowFormat, swizzled: bool, device: str
) -> None:
    for count, columns in ((1, 2880), (4, 768), (2, 1856), (130, 32)):
        gate_up = rows(count, 2 * columns, device, seed=count, spread=3.0)
        activated = activated_rows(gate_up)
        scale, out = scale_for(row_format, activated), poisoned(activated, row_format, swizzled)
        activation_quantize(gate_up, row_format, global_scale=scale, swizzled=swizzled, out=out)
        assert_quantized(out, quantized_rows(activated, row_format, scale))


@each_row("row_format", _FORMATS)
def test_every_number_of_rows_of_a_decode_step(row_format: RowFormat, device: str) -> None:
    for count in range(1, 17):
        gate_up = rows(count, 192, device, seed=count, spread=2.0)
        activated = activated_rows(gate_up)
        scale = scale_for(row_format, activated)
        out = activation_quantize(gate_up, row_format, global_scale=scale)
        assert_quantized(out, quantized_rows(activated, row_format, scale))


def test_every_gate(device: str) -> None:
    """Each bf16 as a gate, and 1 as up: in blocks of its own size, so that all its bits count."""
    gates = every_bfloat16().float()
    gate = gates[gates.isfinite()].sort().values.to(torch.bfloat16).to(device)
    gate = gate[: len(gate) // 128 * 128].view(-1, 128)
    gate_up = torch.cat([gate, torch.ones_like(gate)], dim=1)
    out = activation_quantize(gate_up, "mxfp8")
    assert_quantized(out, quantized_rows(activated_rows(gate_up), "mxfp8"))


@each_row("row_format", _FORMATS)
def test_odd_rows(row_format: RowFormat, device: str) -> None:
    odd = odd_rows(device)
    gate_up = torch.cat([odd, odd.roll(1, 0)], dim=1)
    activated = activated_rows(gate_up)
    scale = scale_for(row_format, activated)
    out = activation_quantize(gate_up, row_format, global_scale=scale)
    assert_quantized(out, quantized_rows(activated, row_format, scale))


def test_rows_may_lie_apart(device: str) -> None:
    gate_up = rows(3, 256, device)[:, 64:192]
    out = activation_quantize(gate_up, "mxfp8")
    assert_quantized(out, quantized_rows(activated_rows(gate_up), "mxfp8"))


def test_gate_and_up_are_not_the_same(device: str) -> None:
    gate_up = rows(2, 128, device, spread=2.0)
    swapped = torch.cat(gate_up.chunk(2, dim=1)[::-1], dim=1)
    one, other = activation_quantize(gate_up, "mxfp8"), activation_quantize(swapped, "mxfp8")
    assert not torch.equal(one.codes.view(torch.uint8), other.codes.view(torch.uint8))


@each_row("count", [1, 16, 200])
@each_row("columns", [768, 2880, 14336])
def test_rows_are_those_of_vllm(count: int, columns: int) -> None:
    """Where vLLM and a GPU are: its kernel, then our quantization, against the one pass."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("vllm._custom_ops")
    gate_up = rows(count, 2 * columns, "cuda", spread=3.0)
    activated = gate_up.new_empty(count, columns)
    torch.ops._C.silu_and_mul(activated, gate_up)
    for row_format in _FORMATS:
        scale = scale_for(row_format, activated)
        separate = quantize_rows(activated, row_format, global_scale=scale)
        fused = activation_quantize(gate_up, row_format, global_scale=scale)
        assert_quantized(fused, separate.unpadded(scale))


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    gate_up = rows(3, 2 * 2880, "cpu")
    for row_format in _FORMATS:
        out = poisoned(gate_up[:, :2880], row_format, True)
        moved = sum(t.numel() * t.element_size() for t in (gate_up, out.codes, out.scales))
        assert moved_bytes(3, 2880, row_format) == moved


def test_each_constant_is_a_kernel_of_its_own() -> None:
    assert len({code.label for code in codes()}) == len(codes())


def test_what_does_not_fit_is_refused(device: str) -> None:
    gate_up = rows(2, 128, device)
    for message, call in (
        ("two halves", lambda: activation_quantize(gate_up[:, :65], "mxfp8")),
        ("whole blocks of 32", lambda: activation_quantize(gate_up[:, :96], "mxfp8")),
        ("give bfloat16", lambda: activation_quantize(gate_up.half(), "mxfp8")),
        ("needs the global scale", lambda: activation_quantize(gate_up, "nvfp4")),
    ):
        with pytest.raises(KernelError, match=message):
            call()
