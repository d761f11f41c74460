"""Tokens to rows sorted by expert, quantized to NVFP4 or MXFP8 on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spark_prof.kernels.formats import GlobalScale
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.quantized_rows import (
    PADDING_BLOCKS,
    ROW_FORMATS,
    THREADS,
    QuantizedRows,
    RowFormat,
    check_rows,
    empty_rows,
    factor,
    row_slices,
    sliced_code,
    written_bytes,
)
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch

_MOST_SORTED_ROWS = 65535
"""Blocks of a grid in y."""


def expand_quantize(
    x: torch.Tensor,
    token_of_row: torch.Tensor,
    expert_offsets: torch.Tensor,
    scale_offsets: torch.Tensor,
    row_format: RowFormat,
    *,
    global_scale: GlobalScale | None = None,
    out: QuantizedRows | None = None,
) -> QuantizedRows:
    """Quantizes a token once for each of its experts, bit for bit as vLLM's two kernels would.

    Those are `shuffle_rows` and `scaled_fp4_experts_quant`, from which the index lists come too
    (`a_map`, `expert_offsets`, `blockscale_offsets`).

    Codes are sorted row by sorted row. Scales are in the order 128x4, each expert by itself: those
    of expert e are a matrix of `scale_offsets[e + 1] - scale_offsets[e]` rows from row
    `scale_offsets[e]` of `out.scales` on, which is its own rows padded with 0 to 128. Rows that no
    expert has are left as they are.

    Args:
        x: bfloat16 [M, K], M up to 4096, K a multiple of 16 (NVFP4) or 32 (MXFP8).
        token_of_row: int32 [R], the row of x of each sorted row; what is no row of x, such as -1,
            counts as zeros.
        expert_offsets: int32 [E + 1]: the rows of expert e go from its offset to the next.
        scale_offsets: int32 [E + 1], multiples of 128, that far apart that each expert's rows fit.
        global_scale: NVFP4 only, one or one an expert [E, 1], that divides.

    Raises:
        KernelError: dtype, shape, stride or device is not as above.
    """
    check_rows("x", x)
    tokens, columns = x.shape
    rows, experts = token_of_row.numel(), expert_offsets.numel() - 1
    for name, list_, length in (
        ("token_of_row", token_of_row, rows),
        ("expert_offsets", expert_offsets, experts + 1),
        ("scale_offsets", scale_offsets, experts + 1),
    ):
        if list_.dtype != torch.int32 or list_.shape != (length,) or not list_.is_contiguous():
            raise KernelError(
                f"{name} is {list_.dtype} of shape {tuple(list_.shape)}; give {length} int32"
            )
        if list_.device != x.device:
            raise KernelError(f"{name} is on {list_.device}, the rows are on {x.device}")
    if experts < 1 or not 1 <= rows <= _MOST_SORTED_ROWS:
        raise KernelError(f"{rows} sorted rows for {experts} experts; 1 to 65535 rows go")
    scale = factor(row_format, global_scale, x.device, experts)
    tall = most_scale_rows(rows, experts)
    out = empty_rows(rows, columns, row_format, True, x.device, out, tall)
    arguments = [x, token_of_row, expert_offsets, scale_offsets, scale, out.codes, out.scales]
    each = int(scale is not None and scale.numel() > 1)
    launch(
        _code(row_format),
        (row_slices(columns), rows, 1 + PADDING_BLOCKS),
        THREADS,
        [*arguments, tokens, experts, columns, x.stride(0), each],
        dependent=True,
    )
    return out


def most_scale_rows(rows: int, experts: int) -> int:
    """The most rows that scales of sorted rows can take, however the rows fall on experts."""
    used = min(rows, experts)
    return 128 * (used + (rows - used) // 128)


def moved_bytes(tokens: int, rows: int, columns: int, row_format: RowFormat) -> int:
    """Bytes that it reads and writes at least, but for the padding that the routing decides."""
    return 2 * min(tokens, rows) * columns + written_bytes(rows, columns, row_format, False)


def codes() -> Sequence[KernelCode]:
    """Every kernel that it may launch."""
    return [_code(row_format) for row_format in ROW_FORMATS]


def _code(row_format: RowFormat) -> KernelCode:
    return sliced_code("expand_quantize", row_format, True)
