"""BF16 layers quantized when a model is loaded, and the error that this brings.

Such a layer computes something else than its checkpoint says. What it gains is the gain of
quantization and kernel together, and is reported as that (`CHANGE`), beside the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from spark_prof.kernels.formats import Fp8Rows, MxFp4, MxRecipe, quantize_fp8_rows, quantize_mxfp4
from spark_prof.kernels.kernel_error import KernelError


@dataclass(frozen=True)
class Deviation:
    """How far quantized values are from those that they stand for."""

    relative_l2: float  # the L2 norm of the differences over that of the values
    worst: float
    worst_at: tuple[int, int]
    snr_db: float  # signal to noise, -20 log10 of `relative_l2`; infinite without an error

    def __str__(self) -> str:
        """For a line of a report."""
        return f"{self.relative_l2:.2%} ({self.snr_db:.1f} dB, worst element {self.worst:.3g} off)"


class Differences:
    """Adds up the deviation of a matrix from its pieces, so that none need be whole in float64."""

    def __init__(self) -> None:
        self._signal = self._noise = self._worst = 0.0
        self._worst_at = (0, 0)

    def add(self, before: torch.Tensor, after: torch.Tensor, row: int, column: int) -> None:
        """Takes in a piece that begins at that row and column."""
        off = (after - before).abs()
        self._signal += float(before.square().sum())
        self._noise += float(off.square().sum())
        worst = float(off.max())
        if worst > self._worst:
            at = divmod(int(off.argmax()), off.shape[1])
            self._worst, self._worst_at = worst, (row + at[0], column + at[1])

    def deviation(self) -> Deviation:
        """That of all pieces together."""
        if not self._noise:
            return Deviation(0.0, 0.0, self._worst_at, math.inf)
        if not self._signal:
            return Deviation(math.inf, self._worst, self._worst_at, -math.inf)
        relative = math.sqrt(self._noise / self._signal)
        return Deviation(relative, self._worst, self._worst_at, -20 * math.log10(relative))


CHANGE = "quantization + kernel"
"""What is swapped where a layer's weight is quantized at load."""

LoadFormat = Literal["mxfp4", "fp8"]
"""What a BF16 weight becomes: MXFP4, or E4M3 with a scale for each row."""

DENSE_SLOTS = ("qkv", "o", "mlp", "lm_head")
"""The slots whose weights are one dense matrix."""

_ROWS_AT_ONCE = 8192
"""Bounds what the float64 copies of a large weight, such as an lm_head, take."""


@dataclass(frozen=True)
class QuantizedLinear:
    """A layer's weight after quantization."""

    slot: str
    format: LoadFormat
    recipe: str
    weight: MxFp4 | Fp8Rows
    bytes_before: int  # of the BF16 weight
    bytes_after: int
    error: Deviation
    # Of the layer's result for the activations given, without the rounding of the kernel; None if
    # none were given.
    output_error: Deviation | None

    @property
    def line(self) -> str:
        """One line for a report."""
        sizes = f"{self.bytes_before / 1e6:.1f} MB to {self.bytes_after / 1e6:.1f} MB"
        output = "" if self.output_error is None else f", of the output {self.output_error}"
        return (
            f"{self.slot} ({CHANGE}): bf16 to {self.format}, {self.recipe}, {sizes}; "
            f"relative error of the weight {self.error}{output}"
        )


def quantize_linear(
    slot: str,
    weight: torch.Tensor,
    format: LoadFormat,  # noqa: A002 - the word of the formats
    *,
    recipe: MxRecipe = "even",
    activations: torch.Tensor | None = None,
) -> QuantizedLinear:
    """Quantizes one weight and measures what that changes. The weight stays as it is.

    Args:
        weight: bfloat16 [N, K], all finite; for MXFP4, K is a multiple of 32.
        recipe: of the scales of MXFP4; FP8 has one, the row's largest magnitude over 448.
        activations: bfloat16 [T, K], for the error of the result.
    """
    _check(slot, weight, format, activations)
    parts: list[MxFp4 | Fp8Rows] = []
    of_weight, of_output = Differences(), Differences()
    for row, piece in _pieces(weight):
        part = quantize_fp8_rows(piece) if format == "fp8" else quantize_mxfp4(piece, recipe)
        parts.append(part)
        before, after = piece.to(torch.float64), part.decode()
        of_weight.add(before, after, row, 0)
        if activations is not None:
            given = activations.to(torch.float64)
            of_output.add(given @ before.T, given @ after.T, 0, row)
    joined = _joined(parts)
    return QuantizedLinear(
        slot,
        format,
        "amax / 448 of the row" if format == "fp8" else f"scales {recipe}",
        joined,
        weight.numel() * weight.element_size(),
        _bytes(joined),
        of_weight.deviation(),
        None if activations is None else of_output.deviation(),
    )


def _check(slot: str, weight: torch.Tensor, kind: str, activations: torch.Tensor | None) -> None:
    if slot not in DENSE_SLOTS:
        raise KernelError(f"no slot {slot} has a dense weight; give {', '.join(DENSE_SLOTS)}")
    if kind not in get_args(LoadFormat):
        raise KernelError(f"no weight is quantized to {kind} at load; give mxfp4 or fp8")
    if weight.dtype != torch.bfloat16 or weight.ndim != 2 or not weight.numel():
        raise KernelError(
            f"the weight of {slot} is {weight.dtype} of shape {tuple(weight.shape)}; only bfloat16 "
            "matrices are quantized at load"
        )
    if not all(bool(piece.isfinite().all()) for _, piece in _pieces(weight)):
        raise KernelError(f"the weight of {slot} holds NaN or infinity: it cannot be quantized")
    if activations is not None and (
        activations.dtype != torch.bfloat16
        or activations.ndim != 2
        or activations.shape[1] != weight.shape[1]
        or not activations.numel()
    ):
        raise KernelError(
            f"activations of {activations.dtype}, shape {tuple(activations.shape)}, are not what "
            f"the weight of {slot} takes: bfloat16 [T, {weight.shape[1]}]"
        )


def _pieces(weight: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for row in range(0, weight.shape[0], _ROWS_AT_ONCE):
        yield row, weight[row : row + _ROWS_AT_ONCE]


def _joined(parts: list[MxFp4 | Fp8Rows]) -> MxFp4 | Fp8Rows:
    """The rows of all parts; concatenating their bytes, as torch cannot all types of 8 bits."""
    if isinstance(parts[0], MxFp4):
        packed = [part.packed for part in parts if isinstance(part, MxFp4)]
        return MxFp4(torch.cat(packed), torch.cat([part.scales for part in parts]))
    values = [part.values.view(torch.uint8) for part in parts if isinstance(part, Fp8Rows)]
    scales = torch.cat([part.scales for part in parts])
    return Fp8Rows(torch.cat(values).view(torch.float8_e4m3fn), scales)


def _bytes(weight: MxFp4 | Fp8Rows) -> int:
    values = weight.packed if isinstance(weight, MxFp4) else weight.values
    return int(sum(t.numel() * t.element_size() for t in (values, weight.scales)))
