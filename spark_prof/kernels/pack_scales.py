"""Block scales as the kernels take them, next to what a whole row is multiplied with.

A lane of a kernel makes a scale a BF16 factor by one multiplication and one addition, so a scale is
stored as five bits of exponent and three of mantissa (NVFP4), or as an exponent (MXFP4). Codes are
2^-126 times their value there; the factors make up for it as far as BF16 reaches, the row for the
rest.
"""

from __future__ import annotations

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats import MxFp4, NvFp4

_NVFP4_ROW = 2.0**20
"""weights.cuh makes 2^-20 of an NVFP4 scale of 1: exponent 10, plus 96, minus 126."""

_MXFP4_TOP = 253
"""The exponent byte of a row's largest MXFP4 scale, which is a factor of 1."""

_MXFP4_SPREAD = 125
"""Binary orders of magnitude over which all products of a row stay normal numbers in BF16."""


def packed_nvfp4_scales(weight: NvFp4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The codes [rows, K / 2], the scales in the kernels' order, and the float64 scale of each row.

    A negative scale turns its codes round, a zero makes them zero; a row with a scale that is NaN
    has a row scale that is.

    Raises:
        KernelError: with a global scale a row's is more than float32 holds.
    """
    scales = weight.scales.view(torch.uint8).reshape(-1, weight.scales.shape[-1])
    codes = weight.packed.reshape(-1, weight.packed.shape[-1])
    magnitude = scales & 0x7F
    if (scales == 0x80).any() or (magnitude == 0).any() or (scales > 0x80).any():
        blocks = codes.unflatten(-1, (-1, 8))
        flips = torch.where(scales > 0x80, 0x88, 0).to(torch.uint8).unsqueeze(-1)
        blocks = torch.where((magnitude == 0).unsqueeze(-1), 0, blocks ^ flips)
        codes = blocks.flatten(-2)
    # E4M3 to an exponent that is 10 at a scale of 1, and a mantissa without a hidden zero.
    mantissa, exponent = torch.frexp(
        (magnitude.view(torch.float8_e4m3fn)).to(torch.float32).nan_to_num(1.0)
    )
    encoded = ((exponent + 9) << 3 | ((mantissa * 16).to(torch.int32) & 7)).to(torch.uint8)
    ordered = _in_units(encoded, (4, 2)).permute(0, 3, 2, 5, 4, 1)
    multiplier = weight.global_scale.multiplier().to(codes.device)
    multiplier = multiplier.expand(*weight.packed.shape[:-1], 1).flatten()
    row_scale = multiplier * _NVFP4_ROW
    if (multiplier.isfinite() & row_scale.to(torch.float32).isinf()).any():
        raise KernelError(
            f"a global scale multiplies NVFP4 weights by {float(multiplier.abs().max()):.3g}: the"
            " kernels go up to 2^108, keep vLLM's kernel for this layer"
        )
    row_scale = torch.where((magnitude == 0x7F).any(-1), torch.nan, row_scale)
    return codes, ordered.contiguous().flatten(), row_scale


def packed_mxfp4_scales(weight: MxFp4) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales in the kernels' order, and the float64 scale of each row.

    Raises:
        KernelError: the scales of a row lie further apart than BF16 reaches.
    """
    scales = weight.scales.reshape(-1, weight.scales.shape[-1])
    used = ((weight.packed.reshape(*scales.shape, 16) & 0x77) != 0).any(-1)
    exponents = scales.to(torch.int32)
    counted = used & (exponents != 255)
    largest = torch.where(counted, exponents, -1).amax(-1)
    largest = torch.where(largest < 0, 127, largest)
    moved = exponents - largest.unsqueeze(-1) + _MXFP4_TOP
    if (counted & (moved < _MXFP4_TOP - _MXFP4_SPREAD)).any():
        raise KernelError(
            f"the MXFP4 scales of a row lie more than 2^{_MXFP4_SPREAD} apart: BF16 does not reach"
            " that far, keep vLLM's kernel for this layer"
        )
    encoded = torch.where(counted, moved, 1).to(torch.uint8)
    ordered = _in_units(encoded, (4,)).permute(0, 3, 2, 4, 1)
    row_scale = torch.ldexp(torch.ones_like(largest, dtype=torch.float64), largest - 127)
    row_scale = torch.where((exponents == 255).any(-1), torch.nan, row_scale)
    return ordered.contiguous().flatten(), row_scale


def _in_units(scales: torch.Tensor, blocks: tuple[int, ...]) -> torch.Tensor:
    """Bytes [rows, K / block] as [stack, 2, 8, unit, *blocks], padded to whole ones."""
    rows, width = scales.shape
    unit = 8 if len(blocks) == 2 else 4
    padded = torch.nn.functional.pad(scales, (0, -width % unit, 0, -rows % 16), value=8)
    return padded.reshape(-1, 2, 8, padded.shape[1] // unit, *blocks)
