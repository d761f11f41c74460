"""What the kernels that write quantized rows are given: checked tensors, constants, blocks."""

from __future__ import annotations

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import GlobalScale
from spark_prof.kernels.operands import check_operand
from spark_prof.kernels.quantized_rows import ROW_FORMATS, RowFormat
from spark_prof.kernels.runtime.code import KernelCode

_MOST_ROWS = 4096
THREADS = 128
"""Of a block of the kernels that cut a row in slices; a thread has 8 values of it."""
PADDING_BLOCKS = 4
"""How many blocks of each slice write scales of rows that are only padding."""


def check_rows(
    name: str, x: torch.Tensor, columns: int | None = None, device: torch.device | None = None
) -> None:
    """Refuses what is not rows of BF16 that can be loaded 16 bytes at a time.

    Args:
        x: should be bfloat16 [1 to 4096, K]; rows may lie apart.
        columns: K, if it is known.
        device: where the other rows are, if there are others.
    """
    if x.dtype != torch.bfloat16 or x.ndim != 2:
        raise KernelError(f"{name} is {x.dtype} of shape {tuple(x.shape)}; give bfloat16 rows")
    if not 1 <= x.shape[0] <= _MOST_ROWS:
        raise KernelError(f"{name} has {x.shape[0]} rows; give 1 to {_MOST_ROWS}")
    if columns is not None and x.shape[1] != columns:
        raise KernelError(f"{name} has {x.shape[1]} columns; it must have {columns}")
    if device is not None and x.device != device:
        raise KernelError(f"{name} is on {x.device}, the rows are on {device}")
    check_operand(name, x, (x.shape[0], x.shape[1]), x.device, rows_apart=True)


def factor(
    row_format: RowFormat, global_scale: GlobalScale | None, device: torch.device, experts: int = 1
) -> torch.Tensor | None:
    """What an NVFP4 kernel multiplies its scales with: one number, or one an expert.

    Args:
        row_format: MXFP8 has none.
        global_scale: one that divides, so that no launch has to take its reciprocal.
        device: where it must lie.
    """
    if row_format not in ROW_FORMATS:
        raise KernelError(f"no rows are quantized to {row_format}; give one of {(*ROW_FORMATS,)}")
    if row_format == "mxfp8":
        if global_scale is not None:
            raise KernelError("MXFP8 has no global scale")
        return None
    if global_scale is None:
        raise KernelError("NVFP4 needs the global scale of its activations")
    if global_scale.convention != "divides":
        raise KernelError(
            "give the global scale as one that divides, once: GlobalScale(1 / value, 'divides')"
        )
    value = global_scale.value
    if value.numel() not in (1, experts) or not value.is_contiguous():
        wanted = "one" if experts == 1 else f"one or {experts}, contiguous"
        raise KernelError(f"{value.numel()} global scales of activations; give {wanted}")
    if value.device != device:
        raise KernelError(f"the global scale is on {value.device}, the rows are on {device}")
    return value


def format_defines(row_format: RowFormat, swizzled: bool) -> tuple[tuple[str, int], ...]:
    """The constants that block_quantize.cuh is compiled with."""
    return (("FORMAT", ROW_FORMATS[row_format].define), ("SWIZZLED", int(swizzled)))


def sliced_code(entry: str, row_format: RowFormat, swizzled: bool) -> KernelCode:
    """What is compiled of a kernel that cuts a row in slices; its source has its name."""
    defines = (*format_defines(row_format, swizzled), ("THREADS", THREADS))
    return KernelCode(f"{entry}.cu", entry, defines)


def row_slices(columns: int) -> int:
    """Blocks of `THREADS` that a row and the padding of its scales take."""
    return -(-columns // (THREADS * 8))


def padding_blocks(rows: int, swizzled: bool) -> int:
    """Further blocks, for the scales of the rows that the last 128 are filled up with."""
    return PADDING_BLOCKS if swizzled and rows % 128 else 0
