"""MXFP4: E2M1 elements with an E8M0 scale, a power of two, for each 32 of a row.

gpt-oss checkpoints store the MXFP4 weights of their experts as `*_blocks`, uint8
[E, N, K / 32, 16], and `*_scales`, uint8 [E, N, K / 32]. Of `gate_up_proj`, rows 0, 2, 4 ... are
the gate and rows 1, 3, 5 ... are up (openai/gpt-oss, `gpt_oss/torch/weights.py` and `model.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spark_prof.kernels.formats.elements import (
    block_amax,
    blocks_of,
    check_fp4,
    e2m1_decode,
    e2m1_encode,
    pack_nibbles,
    unpack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError

_BLOCK = 32
_BIAS = 127
_NAN = 255
_LARGEST = 254
_INFINITE = 128
_E2M1_POWER = 3
"""6 is 0.75 * 2^3."""


def e8m0_decode(scales: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """2^(e - 127) of each byte e, and NaN of 255 (OCP Microscaling Formats 1.0, section 5.4.1).

    Byte 0 is 2^-127, which float32 holds only as a subnormal number.
    """
    powers = torch.ldexp(
        torch.ones_like(scales, dtype=torch.float64), scales.to(torch.int32) - _BIAS
    )
    return torch.where(scales == _NAN, torch.nan, powers).to(dtype)


def mxfp4_scales(amax: torch.Tensor) -> torch.Tensor:
    """The scale of blocks, uint8, from their largest magnitudes, float32.

    It is the magnitude's power of two, the next one from 1.75 of it on, over E2M1's 4: as vLLM's
    `downcast_to_mxfp` and compressed-tensors round. A magnitude between 1.5 and 1.75 of its power
    of two saturates. Zeros get the smallest scale, infinity the largest (254), NaN NaN (255).
    """
    # As mantissa in [0.5, 1) times a power of two, so that no logarithm rounds.
    mantissa, power = torch.frexp(amax)
    power = power + (mantissa >= 0.875)
    # vLLM rounds up as a float32, which may become infinity.
    infinite = amax.isinf() | (power > _INFINITE)
    scales = (power - _E2M1_POWER + _BIAS).clamp(0, _LARGEST)
    scales = torch.where(amax == 0, 0, torch.where(infinite, _LARGEST, scales))
    return torch.where(amax.isnan(), _NAN, scales).to(torch.uint8)


@dataclass(frozen=True, eq=False)
class MxFp4:
    """A matrix or a stack of matrices in MXFP4."""

    packed: torch.Tensor  # uint8 [..., N, K / 2], the even column in the low nibble
    scales: torch.Tensor  # uint8 [..., N, K / 32], E8M0, not swizzled

    def __post_init__(self) -> None:
        check_fp4("MXFP4", self.packed, self.scales, torch.uint8, _BLOCK)

    @property
    def shape(self) -> torch.Size:
        """Of what it encodes: [..., N, K]."""
        return torch.Size((*self.packed.shape[:-1], self.packed.shape[-1] * 2))

    def decode(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The values, exact in float64 and float32.

        Args:
            dtype: what the float64 result is rounded to.
        """
        elements = e2m1_decode(unpack_nibbles(self.packed)).unflatten(-1, (-1, _BLOCK))
        return (elements * e8m0_decode(self.scales).unsqueeze(-1)).flatten(-2).to(dtype)


def quantize_mxfp4(values: torch.Tensor) -> MxFp4:
    """Quantizes to MXFP4.

    NaN becomes +6 and does not count in its block's maximum; infinity becomes 6 with its sign.

    Args:
        values: bfloat16, float16 or float32 [..., N, K], K a multiple of 32.
    """
    blocks = blocks_of(values, _BLOCK)
    scales = mxfp4_scales(block_amax(blocks))
    # In float64, where dividing by a power of two never rounds.
    elements = blocks.to(torch.float64) / e8m0_decode(scales).unsqueeze(-1)
    return MxFp4(pack_nibbles(e2m1_encode(elements.flatten(-2))), scales)


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
