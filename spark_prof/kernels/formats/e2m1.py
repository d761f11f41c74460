"""E2M1, the 4-bit float of NVFP4 and MXFP4: sign, two bits of exponent, one of mantissa."""

from __future__ import annotations

import torch

from spark_prof.kernels.errors import KernelError

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

E2M1_VALUES = (*_MAGNITUDES, *(-value for value in _MAGNITUDES))
"""The value of each code, with -0 at code 8 (OCP Microscaling Formats 1.0, table 5)."""

E2M1_LARGEST = 6.0

# Between code i and code i + 1. The value itself goes to the even code: up if i is odd.
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def e2m1_decode(codes: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The values of codes 0 to 15, which every float type holds exactly.

    Args:
        codes: uint8 of any shape; only the low four bits count.
    """
    table = torch.tensor(E2M1_VALUES, dtype=dtype, device=codes.device)
    return table[(codes & 0xF).to(torch.int64)]


def e2m1_encode(values: torch.Tensor) -> torch.Tensor:
    """The codes nearest to values, as `cvt.rn.satfinite.e2m1x2.f32` finds them (PTX ISA, cvt).

    Ties go to the even code. What is larger than 6, infinity too, becomes 6 with its sign; -0 stays
    -0; NaN of either sign becomes +6.

    Args:
        values: floats of any shape and any float type of 16 bits or more.

    Returns:
        uint8 codes 0 to 15 of the same shape.
    """
    magnitude = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for code, midpoint in enumerate(_MIDPOINTS):
        codes += magnitude >= midpoint if code % 2 else magnitude > midpoint
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return torch.where(values.isnan(), 7, codes)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the even one in the low nibble: [..., K] becomes [..., K / 2]."""
    if codes.dtype != torch.uint8 or codes.ndim == 0 or codes.shape[-1] % 2:
        raise KernelError(
            f"codes are {codes.dtype} of shape {tuple(codes.shape)}; give uint8 with an even last"
            " dimension"
        )
    return (codes[..., 0::2] & 0xF) | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The codes of packed bytes, low nibble first: [..., K / 2] becomes [..., K]."""
    if packed.dtype != torch.uint8 or packed.ndim == 0:
        raise KernelError(f"packed codes are {packed.dtype}; give uint8 of one dimension or more")
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
