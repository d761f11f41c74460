from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.expand_quantize import codes, expand_quantize, most_scale_rows, moved_bytes
from spark_prof.kernels.formats import GlobalScale, NvFp4, swizzle_128x4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.quantized_rows import ROW_FORMATS, QuantizedRows, RowFormat
from tests.kernels.row_oracles import quantized_rows
from tests.kernels.rows import odd_rows, poisoned, rows
from tests.rows import each_row

_FORMATS = [*ROW_FORMATS]


def _offsets(counts: list[int], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each expert's rows and scales begin, as vLLM's get_cutlass_moe_mm_data lays them."""
    numbers = torch.tensor([0, *counts])
    padded = (numbers + 127) // 128 * 128
    return tuple(n.cumsum(0).int().to(device) for n in (numbers, padded))  # type: ignore[return-value]


def _scale(row_format: RowFormat, experts: int, device: str) -> GlobalScale | None:
    if row_format == "mxfp8":
        return None
    return GlobalScale(torch.linspace(1.0, 900.0, experts, device=device).view(-1, 1), "divides")


def _assert_expanded(
    out: QuantizedRows,
    x: torch.Tensor,
    tokens: torch.Tensor,
    counts: list[int],
    scale: GlobalScale | None,
) -> None:
    """Each expert's part is what its own rows give alone; behind the last nothing is written."""
    at = scale_row = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        own = scale and GlobalScale(scale.value[min(expert, len(scale.value) - 1)], "divides")
        expected = quantized_rows(x[tokens[at : at + count].long()], out.format, own)
        wanted = expected.packed if isinstance(expected, NvFp4) else expected.values
        codes = out.codes[at : at + count]
        assert torch.equal(codes.view(torch.uint8), wanted.view(torch.uint8))
        scales = swizzle_128x4(expected.scales)
        part = out.scales[scale_row : scale_row + len(scales)]
        assert torch.equal(part.view(torch.uint8), scales.view(torch.uint8))
        at, scale_row = at + count, scale_row + len(scales)
    assert (out.codes[at:].view(torch.uint8) == 0xA5).all()
    assert (out.scales[scale_row:].view(torch.uint8) == 0xA5).all()


@each_row("columns", [64, 2880])
@each_row("row_format", _FORMATS)
@each_row("counts", [[2, 0, 5, 1], [0, 0, 3], [130, 0, 1], [1] * 40, [128, 256]])
def test_each_expert_has_its_tokens(
    counts: list[int], row_format: RowFormat, columns: int, device: str
) -> None:
    if columns > 64 and sum(counts) > 10:
        pytest.skip("wide rows are tried with few of them")
    x, total = rows(7, columns, device), sum(counts)
    tokens = (torch.arange(total, device=device) * 5 % 7).int()
    scale = _scale(row_format, len(counts), device)
    out = poisoned(x, row_format, True, total, most_scale_rows(total, len(counts)))
    offsets, scale_offsets = _offsets(counts, device)
    expand_quantize(x, tokens, offsets, scale_offsets, row_format, global_scale=scale, out=out)
    _assert_expanded(out, x, tokens, counts, scale)


@each_row("row_format", _FORMATS)
def test_one_global_scale_serves_all_experts(row_format: RowFormat, device: str) -> None:
    x, counts = odd_rows(device), [3, 4]
    tokens = torch.arange(7, dtype=torch.int32, device=device)
    scale = _scale(row_format, 1, device)
    out = poisoned(x, row_format, True, 7, most_scale_rows(7, 2))
    expand_quantize(x, tokens, *_offsets(counts, device), row_format, global_scale=scale, out=out)
    _assert_expanded(out, x, tokens, counts, scale)


def test_rows_that_no_expert_has_are_left_alone(device: str) -> None:
    x, counts = rows(2, 64, device), [1, 2]
    tokens = torch.tensor([0, 1, 0, 1, 1], dtype=torch.int32, device=device)
    out = poisoned(x, "mxfp8", True, 5, most_scale_rows(5, 2))
    expand_quantize(x, tokens, *_offsets(counts, device), "mxfp8", out=out)
    _assert_expanded(out, x, tokens, counts, None)


def test_what_is_no_token_counts_as_zeros(device: str) -> None:
    x = rows(2, 64, device)
    tokens = torch.tensor([-1, 2, 1], dtype=torch.int32, device=device)
    out = expand_quantize(x, tokens, *_offsets([3], device), "mxfp8")
    padded = torch.cat([torch.zeros_like(x), x[1:]])
    _assert_expanded(out, padded, torch.arange(3), [3], None)


def test_no_routing_needs_more_scale_rows() -> None:
    for experts in (1, 3, 8):
        for total in (1, 2, 127, 128, 129, 500):
            most = most_scale_rows(total, experts)
            spread = [total // experts + (i < total % experts) for i in range(experts)]
            lonely = [1] * (min(experts, total) - 1)
            for counts in (spread, [total], [*lonely, total - len(lonely)]):
                assert sum(-(-count // 128) * 128 for count in counts) <= most


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    assert moved_bytes(1, 8, 2048, "nvfp4") == 2 * 2048 + 8 * (1024 + 128)
    assert moved_bytes(4, 8, 2048, "mxfp8") == 4 * 2 * 2048 + 8 * (2048 + 64)


def test_each_constant_is_a_kernel_of_its_own() -> None:
    assert len({code.label for code in codes()}) == len(codes())


def test_what_does_not_fit_is_refused(device: str) -> None:
    x, tokens = rows(2, 64, device), torch.zeros(3, dtype=torch.int32, device=device)
    offsets, scale_offsets = _offsets([1, 2], device)
    none = tokens[:0]
    for message, arguments in (
        ("token_of_row is torch.int64", (tokens.long(), offsets, scale_offsets)),
        ("scale_offsets is torch.int32 of", (tokens, offsets, scale_offsets[:2])),
        ("0 sorted rows for 2", (none, offsets, scale_offsets)),
        ("3 sorted rows for 0", (tokens, offsets[:1], scale_offsets[:1])),
        ("expert_offsets is on meta", (tokens, offsets.to("meta"), scale_offsets)),
    ):
        with pytest.raises(KernelError, match=message):
            expand_quantize(x, *arguments, "mxfp8")
