"""FP8 weights with one float32 scale for each row: what BF16 layers become at load."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats.blocks import block_amax, blocks_of, quotients
from spark_prof.kernels.formats.e4m3 import E4M3_LARGEST, e4m3_decode, e4m3_encode


@dataclass(frozen=True, eq=False)
class Fp8Rows:
    """A matrix in E4M3 with a scale for each row.

    Attributes:
        values: float8_e4m3fn [N, K].
        scales: float32 [N]; value = element * scale.
    """

    values: torch.Tensor
    scales: torch.Tensor

    def __post_init__(self) -> None:
        if (self.values.dtype, self.scales.dtype) != (torch.float8_e4m3fn, torch.float32):
            raise KernelError(
                f"FP8 rows are {self.values.dtype} with scales of {self.scales.dtype}; they must be"
                " float8_e4m3fn and float32"
            )
        if self.values.ndim != 2 or self.scales.shape != self.values.shape[:1]:
            raise KernelError(
                f"FP8 rows of shape {tuple(self.values.shape)} do not go with scales of shape"
                f" {tuple(self.scales.shape)}: one scale is for one row"
            )
        if self.values.device != self.scales.device:
            raise KernelError(
                f"FP8 rows are on {self.values.device}, their scales on {self.scales.device}"
            )

    @property
    def shape(self) -> torch.Size:
        """Of what it encodes: [N, K]."""
        return self.values.shape

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64.

        Args:
            dtype: what the float64 result is rounded to.
        """
        return (e4m3_decode(self.values) * self.scales.to(torch.float64).unsqueeze(-1)).to(dtype)


def quantize_fp8_rows(values: torch.Tensor) -> Fp8Rows:
    """Quantizes each row by itself: scale = amax / 448, element = E4M3(value / scale), in float32.

    A row of zeros gets the scale 1.

    Args:
        values: bfloat16, float16 or float32 [N, K], all finite.
    """
    if values.ndim != 2 or not values.shape[-1]:
        raise KernelError(f"FP8 rows need a matrix, not shape {tuple(values.shape)}")
    rows = blocks_of(values, values.shape[-1]).squeeze(-2)
    if not rows.isfinite().all():
        raise KernelError("cannot quantize weights that are NaN or infinite")
    scales = quotients(block_amax(rows), E4M3_LARGEST)
    scales = torch.where(scales == 0, 1.0, scales)
    return Fp8Rows(e4m3_encode(rows / scales.unsqueeze(-1)), scales)
