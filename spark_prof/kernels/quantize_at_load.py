"""BF16 layers quantized when a model is loaded, and the error that this brings.

Such a layer computes something else than its checkpoint says. What it gains is the gain of
quantization and kernel together, and is reported as that (`CHANGE`), beside the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from spark_prof.kernels.formats import Fp8Rows, MxFp4, quantize_fp8_rows, quantize_mxfp4
from spark_prof.kernels.kernel_error import KernelError

CHANGE = "quantization + kernel"
"""What is swapped where a layer's weight is quantized at load."""

LoadFormat = Literal["mxfp4", "fp8"]
"""What a BF16 weight becomes: MXFP4, or E4M3 with a scale for each row."""

DENSE_SLOTS = ("qkv", "o", "mlp", "lm_head")

_ROWS_AT_ONCE = 8192
"""Bounds what the float64 copies of a large weight, such as an lm_head, take."""


@dataclass(frozen=True)
class QuantizedLinear:
    """A layer's weight after quantization, and how far it is from what it stands for."""

    slot: str
    format: LoadFormat
    weight: MxFp4 | Fp8Rows
    bytes_before: int  # of the BF16 weight
    bytes_after: int
    relative_error: float  # the L2 norm of the differences over that of the weight
    worst: float  # the largest difference of an element

    @property
    def line(self) -> str:
        """One line for a report."""
        recipe = "amax / 448 of the row" if self.format == "fp8" else "scales even"
        sizes = f"{self.bytes_before / 1e6:.1f} MB to {self.bytes_after / 1e6:.1f} MB"
        error = self.relative_error
        snr_db = -20 * math.log10(error) if error else math.inf
        return (
            f"{self.slot} ({CHANGE}): bf16 to {self.format}, {recipe}, {sizes}; relative error of"
            f" the weight {error:.2%} ({snr_db:.1f} dB, worst element {self.worst:.3g} off)"
        )


def quantize_linear(
    slot: str,
    weight: torch.Tensor,  # bfloat16 [N, K], all finite; for MXFP4, K is a multiple of 32
    format: LoadFormat,  # noqa: A002 - the word of the formats
) -> QuantizedLinear:
    """Quantizes one weight and measures what that changes. The weight stays as it is."""
    _check(slot, weight)
    codes: list[torch.Tensor] = []
    scales: list[torch.Tensor] = []
    signal = noise = worst = 0.0
    for piece in _pieces(weight):
        part = quantize_fp8_rows(piece) if format == "fp8" else quantize_mxfp4(piece)
        # As bytes: torch cannot join all types of 8 bits.
        codes.append(part.values.view(torch.uint8) if isinstance(part, Fp8Rows) else part.packed)
        scales.append(part.scales)
        before = piece.to(torch.float64)
        off = (part.decode() - before).abs()
        signal += float(before.square().sum())
        noise += float(off.square().sum())
        worst = max(worst, float(off.max()))
    whole, every_scale = torch.cat(codes), torch.cat(scales)
    return QuantizedLinear(
        slot,
        format,
        Fp8Rows(whole.view(torch.float8_e4m3fn), every_scale)
        if format == "fp8"
        else MxFp4(whole, every_scale),
        weight.nbytes,
        whole.nbytes + every_scale.nbytes,
        math.sqrt(noise / signal) if noise else 0.0,
        worst,
    )


def _check(slot: str, weight: torch.Tensor) -> None:
    if slot not in DENSE_SLOTS:
        raise KernelError(f"no slot {slot} has a dense weight; give {', '.join(DENSE_SLOTS)}")
    if weight.dtype != torch.bfloat16 or weight.ndim != 2 or not weight.numel():
        raise KernelError(
            f"the weight of {slot} is {weight.dtype} of shape {tuple(weight.shape)}; only bfloat16 "
            "matrices are quantized at load"
        )
    if not all(bool(piece.isfinite().all()) for piece in _pieces(weight)):
        raise KernelError(f"the weight of {slot} holds NaN or infinity: it cannot be quantized")


def _pieces(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    for row in range(0, weight.shape[0], _ROWS_AT_ONCE):
        yield weight[row : row + _ROWS_AT_ONCE]
