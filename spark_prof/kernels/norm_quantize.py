"""RMSNorm, with or without a residual, to NVFP4 or MXFP8, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spark_prof.kernels.formats import GlobalScale
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.quantized_rows import (
    ROW_FORMATS,
    QuantizedRows,
    RowFormat,
    check_rows,
    empty_rows,
    factor,
    format_defines,
    padding_blocks,
    written_bytes,
)
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch

_VECTORS = (1, 2, 4)
"""How many times 8 values of a row a thread may hold."""


def norm_quantize(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    row_format: RowFormat,
    *,
    residual: torch.Tensor | None = None,
    global_scale: GlobalScale | None = None,
    swizzled: bool = True,
    out: QuantizedRows | None = None,
) -> QuantizedRows:
    """Quantizes RMSNorm(x + residual) * weight, bit for bit as vLLM's kernels one after the other.

    Those are `rms_norm` or `fused_add_rms_norm` of vLLM 0.26, which round x * factor * weight to
    BF16 once, and the quantization. Other results come of vLLM's batch-invariant mode, which adds
    squares in another order; of versions that round to BF16 before the weight too; and, on a CPU,
    of reciprocals and square roots, which are rounded correctly there.

    Args:
        x: bfloat16 [M, K], M up to 4096, K a multiple of 16 (NVFP4) or 32 (MXFP8) and up to 32768;
            to 8192 from 256 rows on.
        weight: bfloat16 [K].
        residual: bfloat16 [M, K]; becomes x + residual.
        global_scale: of the result, NVFP4 only, one that divides.
        swizzled: scales in the order 128x4, padded with 0.

    Raises:
        KernelError: dtype, shape, stride or device is not as above.
    """
    check_rows("x", x)
    rows, columns = x.shape
    check_rows("weight", weight.unsqueeze(0), columns, x.device)
    if residual is not None:
        check_rows("residual", residual, columns, x.device)
        if residual.shape[0] != rows:
            raise KernelError(f"residual has {residual.shape[0]} rows, x has {rows}")
    scale = factor(row_format, global_scale, x.device)
    out = empty_rows(rows, columns, row_format, swizzled, x.device, out)
    threads, vectors = _shape_of_block(rows, columns)
    arguments = [x, residual, weight, scale, out.codes, out.scales, rows, columns, x.stride(0)]
    arguments += [0 if residual is None else residual.stride(0), float(epsilon)]
    launch(
        _code(row_format, swizzled, residual is not None, vectors),
        (rows + padding_blocks(rows, swizzled), 1, 1),
        threads,
        arguments,
        dependent=True,
    )
    return out


def moved_bytes(
    rows: int, columns: int, row_format: RowFormat, swizzled: bool = True, residual: bool = True
) -> int:
    """Bytes that it reads and writes at least."""
    read = 2 * columns * (rows + 1)
    kept = 4 * rows * columns if residual else 0
    return read + kept + written_bytes(rows, columns, row_format, swizzled)


def codes() -> Sequence[KernelCode]:
    """Every kernel that it may launch."""
    return [
        _code(row_format, swizzled, residual, vectors)
        for row_format in ROW_FORMATS
        for swizzled in (False, True)
        for residual in (False, True)
        for vectors in _VECTORS
    ]


def _shape_of_block(rows: int, columns: int) -> tuple[int, int]:
    """Threads of a block and vectors of a thread, by which vLLM's order of adding follows."""
    vectors = columns // 8
    threads = min(-(-vectors // 32) * 32, 1024 if rows < 256 else 256)
    for each in _VECTORS:
        if threads * each >= vectors:
            return threads, each
    raise KernelError(
        f"rows of {columns} columns are too long to norm and quantize {rows} of them:"
        f" {threads * _VECTORS[-1] * 8} is the most"
    )


def _code(row_format: RowFormat, swizzled: bool, residual: bool, vectors: int) -> KernelCode:
    own = (("RESIDUAL", int(residual)), ("VECTORS", vectors))
    defines = (*format_defines(row_format, swizzled), *own)
    return KernelCode("norm_quantize.cu", "norm_quantize", defines)
