"""BF16 rows to NVFP4 or MXFP8."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spark_prof.kernels.formats import GlobalScale
from spark_prof.kernels.quantized_rows import (
    ROW_FORMATS,
    THREADS,
    QuantizedRows,
    RowFormat,
    check_rows,
    empty_rows,
    factor,
    padding_blocks,
    row_slices,
    sliced_code,
    written_bytes,
)
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch


def quantize_rows(
    x: torch.Tensor,
    row_format: RowFormat,
    *,
    global_scale: GlobalScale | None = None,
    swizzled: bool = True,
    out: QuantizedRows | None = None,
) -> QuantizedRows:
    """Quantizes rows as vLLM's `scaled_fp4_quant` and `mxfp8_e4m3_quantize`, bit for bit.

    For NVFP4 on a CPU reciprocals are rounded correctly, which those of a GPU need not be. In MXFP8
    vLLM's version in torch takes NaN and infinity for the largest magnitude of a block.

    Args:
        x: bfloat16 [M, K], M up to 4096, K a multiple of 16 (NVFP4) or 32 (MXFP8).
        global_scale: of the tensor, NVFP4 only, one that divides.
        swizzled: scales in the order 128x4, padded with 0.

    Raises:
        KernelError: dtype, shape, stride or device is not as above.
    """
    check_rows("x", x)
    rows, columns = x.shape
    scale = factor(row_format, global_scale, x.device)
    out = empty_rows(rows, columns, row_format, swizzled, x.device, out)
    launch(
        _code(row_format, swizzled),
        (row_slices(columns), rows + padding_blocks(rows, swizzled), 1),
        THREADS,
        [x, scale, out.codes, out.scales, rows, columns, x.stride(0)],
        dependent=True,
    )
    return out


def moved_bytes(rows: int, columns: int, row_format: RowFormat, swizzled: bool = True) -> int:
    """Bytes that it reads and writes at least."""
    return 2 * rows * columns + written_bytes(rows, columns, row_format, swizzled)


def codes() -> Sequence[KernelCode]:
    """Every kernel that it may launch."""
    return [_code(row_format, swizzled) for row_format in ROW_FORMATS for swizzled in (False, True)]


def _code(row_format: RowFormat, swizzled: bool) -> KernelCode:
    return sliced_code("quantize", row_format, swizzled)
