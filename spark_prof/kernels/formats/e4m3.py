"""E4M3, the 8-bit float of MXFP8's values and NVFP4's scales, as PyTorch's `float8_e4m3fn`."""

from __future__ import annotations

import torch

E4M3_LARGEST = 448.0


def e4m3_decode(values: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The values as a wider float type, exactly."""
    return values.to(torch.float32).to(dtype)


def e4m3_encode(values: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3, as `cvt.rn.satfinite.e4m3x2.f32` finds it (PTX ISA, cvt).

    Ties go to even. What is larger than 448, infinity too, becomes 448 with its sign; -0 stays -0;
    NaN of either sign becomes the positive one, 0x7F.

    Args:
        values: float32 of any shape, or narrower floats.
    """
    nearest = values.to(torch.float32).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
    positive_nan = torch.where(values.isnan(), 0x7F, nearest.view(torch.uint8))
    return positive_nan.view(torch.float8_e4m3fn)
