"""MXFP4 and MXFP8: E2M1 or E4M3 elements with an E8M0 scale for each 32 of a row.

gpt-oss checkpoints store the MXFP4 weights of their experts as `*_blocks`, uint8
[E, N, K / 32, 16], and `*_scales`, uint8 [E, N, K / 32]. Of `gate_up_proj`, rows 0, 2, 4 ... are
the gate and rows 1, 3, 5 ... are up (openai/gpt-oss, `gpt_oss/torch/weights.py` and `model.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spark_prof.kernels.formats.block_scales import MX_BLOCK, MxRecipe, e8m0_decode, e8m0_scales
from spark_prof.kernels.formats.elements import (
    E2M1_LARGEST,
    E4M3_LARGEST,
    block_amax,
    blocks_of,
    check_scales,
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
    pack_nibbles,
    unpack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError


@dataclass(frozen=True, eq=False)
class MxFp4:
    """A matrix or a stack of matrices in MXFP4."""

    packed: torch.Tensor  # uint8 [..., N, K / 2], the even column in the low nibble
    scales: torch.Tensor  # uint8 [..., N, K / 32], E8M0, not swizzled

    def __post_init__(self) -> None:
        types = (torch.uint8, torch.uint8)
        check_scales("MXFP4", self.packed, self.scales, types=types, elements=2, block=MX_BLOCK)

    @property
    def shape(self) -> torch.Size:
        """Of what it encodes: [..., N, K]."""
        return torch.Size((*self.packed.shape[:-1], self.packed.shape[-1] * 2))

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64 and float32.

        Args:
            dtype: what the float64 result is rounded to.
        """
        return _scaled(e2m1_decode(unpack_nibbles(self.packed)), self.scales).to(dtype)


@dataclass(frozen=True, eq=False)
class MxFp8:
    """A matrix or a stack of matrices in MXFP8."""

    values: torch.Tensor  # float8_e4m3fn [..., N, K]
    scales: torch.Tensor  # uint8 [..., N, K / 32], E8M0, not swizzled

    def __post_init__(self) -> None:
        types = (torch.float8_e4m3fn, torch.uint8)
        check_scales("MXFP8", self.values, self.scales, types=types, elements=1, block=MX_BLOCK)

    @property
    def shape(self) -> torch.Size:
        """Of what it encodes: [..., N, K]."""
        return self.values.shape

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64; in float32 but for those beyond its range.

        Args:
            dtype: what the float64 result is rounded to.
        """
        return _scaled(e4m3_decode(self.values), self.scales).to(dtype)


def quantize_mxfp4(values: torch.Tensor, recipe: MxRecipe = "even") -> MxFp4:
    """Quantizes to MXFP4.

    NaN becomes +6 and does not count in its block's maximum; infinity becomes 6 with its sign.

    Args:
        values: bfloat16, float16 or float32 [..., N, K], K a multiple of 32.
    """
    blocks = blocks_of(values, MX_BLOCK)
    scales = e8m0_scales(block_amax(blocks), E2M1_LARGEST, recipe)
    return MxFp4(pack_nibbles(e2m1_encode(_unscaled(blocks, scales))), scales)


def quantize_mxfp8(values: torch.Tensor, recipe: MxRecipe = "ceil") -> MxFp8:
    """Quantizes to MXFP8 with E4M3 elements.

    NaN stays NaN and does not count in its block's maximum; infinity becomes 448 with its sign.

    Args:
        values: bfloat16, float16 or float32 [..., N, K], K a multiple of 32.
    """
    blocks = blocks_of(values, MX_BLOCK)
    scales = e8m0_scales(block_amax(blocks), E4M3_LARGEST, recipe)
    return MxFp8(e4m3_encode(_unscaled(blocks, scales)), scales)


def _scaled(elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (elements.unflatten(-1, (-1, MX_BLOCK)) * e8m0_decode(scales).unsqueeze(-1)).flatten(-2)


def _unscaled(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    # In float64, where dividing by a power of two never rounds.
    return (blocks.to(torch.float64) / e8m0_decode(scales).unsqueeze(-1)).flatten(-2)


_BLOCK_BYTES = 16


def mxfp4_of_blocks(blocks: torch.Tensor, scales: torch.Tensor) -> MxFp4:
    """The weights of `*_blocks` [..., N, K / 32, 16] and `*_scales` [..., N, K / 32]."""
    if blocks.ndim < 3 or blocks.shape[-1] != _BLOCK_BYTES:
        raise KernelError(
            f"blocks of shape {tuple(blocks.shape)} do not hold {_BLOCK_BYTES} bytes each"
        )
    return MxFp4(blocks.flatten(-2), scales)


def blocks_of_mxfp4(weight: MxFp4) -> tuple[torch.Tensor, torch.Tensor]:
    """The `*_blocks` and `*_scales` of weights."""
    return weight.packed.unflatten(-1, (-1, _BLOCK_BYTES)), weight.scales


def deinterleave_rows(rows: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The even entries of a dimension, then the odd ones: gate, then up. For biases too."""
    dim = _paired(rows, dim)
    return torch.cat(rows.unflatten(dim, (-1, 2)).unbind(dim + 1), dim)


def interleave_rows(rows: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The halves of a dimension in turns: undoes `deinterleave_rows`."""
    dim = _paired(rows, dim)
    return torch.stack(rows.chunk(2, dim), dim + 1).flatten(dim, dim + 1)


def deinterleave_gate_up(weight: MxFp4) -> MxFp4:
    """Weights [..., 2 I, H] with all rows of the gate before those of up."""
    return MxFp4(deinterleave_rows(weight.packed, -2), deinterleave_rows(weight.scales, -2))


def interleave_gate_up(weight: MxFp4) -> MxFp4:
    """Weights [..., 2 I, H] in the order of the checkpoint: undoes `deinterleave_gate_up`."""
    return MxFp4(interleave_rows(weight.packed, -2), interleave_rows(weight.scales, -2))


def _paired(rows: torch.Tensor, dim: int) -> int:
    dimensions: int = rows.ndim
    if not -dimensions <= dim < dimensions or rows.shape[dim] % 2:
        raise KernelError(
            f"dimension {dim} of shape {tuple(rows.shape)} does not hold pairs of gate and up"
        )
    return dim % dimensions
