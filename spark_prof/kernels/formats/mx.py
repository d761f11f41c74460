"""MXFP4 and MXFP8: E2M1 or E4M3 elements with an E8M0 scale for each 32 of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spark_prof.kernels.formats.blocks import block_amax, blocks_of, check_scales
from spark_prof.kernels.formats.e2m1 import (
    E2M1_LARGEST,
    e2m1_decode,
    e2m1_encode,
    pack_nibbles,
    unpack_nibbles,
)
from spark_prof.kernels.formats.e4m3 import E4M3_LARGEST, e4m3_decode, e4m3_encode
from spark_prof.kernels.formats.e8m0 import MX_BLOCK, MxRecipe, e8m0_decode, e8m0_scales


@dataclass(frozen=True, eq=False)
class MxFp4:
    """A matrix or a stack of matrices in MXFP4.

    Attributes:
        packed: uint8 [..., N, K / 2], the even column in the low nibble.
        scales: uint8 [..., N, K / 32], E8M0, not swizzled.
    """

    packed: torch.Tensor
    scales: torch.Tensor

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
    """A matrix or a stack of matrices in MXFP8.

    Attributes:
        values: float8_e4m3fn [..., N, K].
        scales: uint8 [..., N, K / 32], E8M0, not swizzled.
    """

    values: torch.Tensor
    scales: torch.Tensor

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
        recipe: how the scale of a block is chosen.
    """
    blocks = blocks_of(values, MX_BLOCK)
    scales = e8m0_scales(block_amax(blocks), E2M1_LARGEST, recipe)
    return MxFp4(pack_nibbles(e2m1_encode(_unscaled(blocks, scales))), scales)


def quantize_mxfp8(values: torch.Tensor, recipe: MxRecipe = "ceil") -> MxFp8:
    """Quantizes to MXFP8 with E4M3 elements.

    NaN stays NaN and does not count in its block's maximum; infinity becomes 448 with its sign.

    Args:
        values: bfloat16, float16 or float32 [..., N, K], K a multiple of 32.
        recipe: how the scale of a block is chosen.
    """
    blocks = blocks_of(values, MX_BLOCK)
    scales = e8m0_scales(block_amax(blocks), E4M3_LARGEST, recipe)
    return MxFp8(e4m3_encode(_unscaled(blocks, scales)), scales)


def _scaled(elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (elements.unflatten(-1, (-1, MX_BLOCK)) * e8m0_decode(scales).unsqueeze(-1)).flatten(-2)


def _unscaled(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    # In float64, where dividing by a power of two never rounds.
    return (blocks.to(torch.float64) / e8m0_decode(scales).unsqueeze(-1)).flatten(-2)
