"""Rows quantized for the next matrix product, in NVFP4 or MXFP8: what kernels write, and are given.

The arithmetic is that of vLLM's quantization kernels. What comes of odd numbers: NaN does not
count in its block's largest magnitude and becomes +6 in NVFP4, NaN in MXFP8; infinity makes its
block's scale the largest and becomes 6 or 448 with its sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.formats import GlobalScale, MxFp8, NvFp4, unswizzle_128x4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import check_operand
from spark_prof.kernels.runtime.code import KernelCode

RowFormat = Literal["nvfp4", "mxfp8"]


@dataclass(frozen=True)
class _Layout:
    define: int  # what block_quantize.cuh calls the format
    block: int  # values that share a scale
    codes: torch.dtype
    codes_per_byte: int
    scales: torch.dtype


ROW_FORMATS: dict[RowFormat, _Layout] = {
    "nvfp4": _Layout(0, 16, torch.uint8, 2, torch.float8_e4m3fn),
    "mxfp8": _Layout(3, 32, torch.float8_e4m3fn, 1, torch.uint8),
}


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Rows in NVFP4 or MXFP8, as the matrix product after them reads them."""

    format: RowFormat
    # Uint8 [M, K / 2], the even column in the low nibble; MXFP8 float8_e4m3fn [M, K].
    codes: torch.Tensor
    # E4M3 for each 16, or E8M0 in uint8 for each 32, of a row: [M, K / 16 or K / 32]; in the order
    # 128x4 (formats/block_scales.py) padded to multiples of 128 and 4.
    scales: torch.Tensor
    swizzled: bool  # whether the scales are in the order 128x4

    @property
    def columns(self) -> int:
        """K, the values of a row."""
        return int(self.codes.shape[1]) * ROW_FORMATS[self.format].codes_per_byte

    def unpadded(self, global_scale: GlobalScale | None = None) -> NvFp4 | MxFp8:
        """The same codes with their scales row by row, for decoding.

        Args:
            global_scale: what they were quantized with; NVFP4 only.
        """
        scales = self.scales
        if self.swizzled:
            columns = self.columns // ROW_FORMATS[self.format].block
            scales = unswizzle_128x4(scales, self.codes.shape[0], columns)
        if self.format == "mxfp8":
            return MxFp8(self.codes, scales)
        if global_scale is None:
            raise KernelError("NVFP4 rows are decoded with the global scale they were quantized by")
        return NvFp4(self.codes, scales, global_scale)


def written_bytes(rows: int, columns: int, row_format: RowFormat, swizzled: bool) -> int:
    """Bytes of codes and scales, with the padding of the scales."""
    layout = ROW_FORMATS[row_format]
    tall, wide = _scale_shape(rows, columns, row_format, swizzled)
    return rows * columns // layout.codes_per_byte + tall * wide


def empty_rows(
    rows: int,
    columns: int,
    row_format: RowFormat,
    swizzled: bool,
    device: torch.device,
    out: QuantizedRows | None = None,
    scale_rows: int | None = None,
) -> QuantizedRows:
    """Where a kernel writes: `out` if it fits, else new memory.

    Args:
        columns: K; refused if it is not whole blocks.
        swizzled: whether scales are in the order 128x4.
        scale_rows: rows of the scales, if not those of the codes.
    """
    layout = ROW_FORMATS[row_format]
    if columns < layout.block or columns % layout.block:
        raise KernelError(
            f"{columns} columns are not whole blocks of {layout.block} of {row_format}"
        )
    shapes = (
        (rows, columns // layout.codes_per_byte),
        _scale_shape(scale_rows or rows, columns, row_format, swizzled),
    )
    types = (layout.codes, layout.scales)
    if out is None:
        codes, scales = (
            torch.empty(shape, dtype=dtype, device=device)
            for shape, dtype in zip(shapes, types, strict=True)
        )
        return QuantizedRows(row_format, codes, scales, swizzled)
    if (out.format, out.swizzled) != (row_format, swizzled):
        raise KernelError(f"out is for {out.format} with swizzled={out.swizzled}")
    _check_out("codes", out.codes, shapes[0], types[0], device)
    _check_out("scales", out.scales, shapes[1], types[1], device)
    return out


def _scale_shape(rows: int, columns: int, row_format: RowFormat, swizzled: bool) -> tuple[int, int]:
    blocks = columns // ROW_FORMATS[row_format].block
    return (-(-rows // 128) * 128, -(-blocks // 4) * 4) if swizzled else (rows, blocks)


def _check_out(
    name: str, out: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype or not out.is_contiguous():
        raise KernelError(
            f"the {name} of out are {out.dtype} of shape {tuple(out.shape)} and strides"
            f" {out.stride()}; they must be contiguous {dtype} of shape {tuple(shape)}"
        )
    if out.device != device or out.data_ptr() % 16:
        raise KernelError(f"the {name} of out must be on {device}, at a multiple of 16 bytes")


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
