"""Random weights of a wanted spread, written in place in each format that a checkpoint may have."""

from __future__ import annotations

import math

import torch

from spark_prof.kernels.formats import E2M1_VALUES, e4m3_decode

_E2M1_RMS = math.sqrt(sum(value * value for value in E2M1_VALUES) / len(E2M1_VALUES))
_E4M3_SCALES = (0x68, 0x78)  # 64 to 240, as block scales of real checkpoints are
_E8M0_SCALES = 2  # neighbouring exponents that a tensor's scales have
_E8M0_RMS = math.sqrt((1 + 0.25) / 2)  # of two of them, the upper one being 1
_FP8_STEP = 448 / 4  # an FP8 weight's standard deviation, of its scale
_CHUNK = 1 << 22  # values that are made at a time where they cannot be made in place


class Fill:
    """Writes random weights with one sequence of random numbers."""

    def __init__(self, device: torch.device, seed: int) -> None:
        """Starts a sequence.

        Args:
            seed: from 0 to 2^63 - 1; another device has other numbers for it.
        """
        self._numbers = torch.Generator(device=device)
        self._numbers.manual_seed(seed)

    def normal(self, values: torch.Tensor, spread: float, mean: float = 0.0) -> None:
        """Floating-point numbers with that standard deviation."""
        values.normal_(mean, spread, generator=self._numbers)

    def codes(self, packed: torch.Tensor) -> None:
        """Bytes of two E2M1 codes, each code as likely as the others."""
        self._bytes(packed, 0, 256)

    def nvfp4_scales(self, scales: torch.Tensor) -> float:
        """E4M3 scales of blocks of codes; returns the standard deviation of code * scale."""
        low, high = _E4M3_SCALES
        self._bytes(scales.view(torch.uint8), low, high)
        each = torch.arange(low, high, dtype=torch.uint8).view(torch.float8_e4m3fn)
        return _E2M1_RMS * float(e4m3_decode(each).square().mean().sqrt())

    def mxfp4_scales(self, scales: torch.Tensor, spread: float) -> None:
        """E8M0 scales with which codes have nearly that standard deviation: within a factor 1.5."""
        upper = 127 + round(math.log2(spread / (_E2M1_RMS * _E8M0_RMS)))
        self._bytes(scales, upper + 1 - _E8M0_SCALES, upper + 1)

    def fp8(self, values: torch.Tensor) -> float:
        """Normally distributed E4M3 values; returns their standard deviation."""
        flat = values.view(-1)
        made = torch.empty(min(_CHUNK, flat.numel()), dtype=torch.float32, device=flat.device)
        for first in range(0, flat.numel(), _CHUNK):
            part = flat[first : first + _CHUNK]
            some = made[: part.numel()]
            some.normal_(0, _FP8_STEP, generator=self._numbers).clamp_(-448, 448)
            part.copy_(some)
        return _FP8_STEP

    def _bytes(self, values: torch.Tensor, low: int, high: int) -> None:
        """Bytes from `low` up to, not including, `high`."""
        if (low, high) != (0, 256) or not values.is_contiguous():
            values.random_(low, high, generator=self._numbers)
            return
        # Eight bytes at a time: a random number costs the same for one.
        flat = values.view(-1)
        whole = flat.numel() // 8 * 8
        flat[:whole].view(torch.int64).random_(-(2**63), None, generator=self._numbers)
        flat[whole:].random_(0, 256, generator=self._numbers)
