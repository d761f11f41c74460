"""SiLU(gate) * up to NVFP4 or MXFP8, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spark_prof.kernels.formats import GlobalScale
from spark_prof.kernels.kernel_error import KernelError
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


def activation_quantize(
    gate_up: torch.Tensor,
    row_format: RowFormat,
    *,
    global_scale: GlobalScale | None = None,
    swizzled: bool = True,
    out: QuantizedRows | None = None,
) -> QuantizedRows:
    """Quantizes SiLU(gate) * up, bit for bit as vLLM's `silu_and_mul` with its quantization after.

    vLLM's own fused kernel (`silu_and_mul_nvfp4_quant`) differs: it takes exp and the quotient less
    exactly and does not round SiLU to BF16 before the product. vLLM before it had `beta` kept the
    sign of a product with -0.

    Args:
        gate_up: bfloat16 [M, 2 K], gate before up; M up to 4096, K a multiple of 16 (NVFP4) or 32
            (MXFP8).
        global_scale: of the result, NVFP4 only, one that divides.
        swizzled: scales in the order 128x4, padded with 0.

    Raises:
        KernelError: dtype, shape, stride or device is not as above.
    """
    check_rows("gate_up", gate_up)
    rows, both = gate_up.shape
    if both % 2:
        raise KernelError(f"gate_up has {both} columns, which are not two halves")
    columns = both // 2
    scale = factor(row_format, global_scale, gate_up.device)
    out = empty_rows(rows, columns, row_format, swizzled, gate_up.device, out)
    launch(
        _code(row_format, swizzled),
        (row_slices(columns), rows + padding_blocks(rows, swizzled), 1),
        THREADS,
        [gate_up, scale, out.codes, out.scales, rows, columns, gate_up.stride(0)],
        dependent=True,
    )
    return out


def moved_bytes(rows: int, columns: int, row_format: RowFormat, swizzled: bool = True) -> int:
    """Bytes that it reads and writes at least; `columns` are those of the result."""
    return 4 * rows * columns + written_bytes(rows, columns, row_format, swizzled)


def codes() -> Sequence[KernelCode]:
    """Every kernel that it may launch."""
    return [_code(row_format, swizzled) for row_format in ROW_FORMATS for swizzled in (False, True)]


def _code(row_format: RowFormat, swizzled: bool) -> KernelCode:
    return sliced_code("activation_quantize", row_format, swizzled)
