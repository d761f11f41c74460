"""Tensors between bands of poison, so that reading or writing beside them shows."""

from __future__ import annotations

import torch

_BAND = 512
"""Elements before and behind; a multiple of what any alignment asks for."""
_POISON = {torch.bfloat16: 0x7FA5, torch.float32: 0x7FA5A5A5, torch.int32: 0x7FA5A5A5}
"""NaNs that no arithmetic makes."""


class Guarded:
    """A result to be written: poisoned, with poison before and behind."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        self._bits = torch.int16 if dtype == torch.bfloat16 else torch.int32
        self._poison = _POISON[dtype]
        size = int(torch.Size(shape).numel())
        self._whole = torch.full(
            (size + 2 * _BAND,), self._poison, dtype=self._bits, device=device
        ).view(dtype)
        self.tensor = self._whole[_BAND : _BAND + size].view(shape)

    def problem(self) -> str:
        """What was written beside the result, or left out of it; empty if nothing."""
        poisoned = self._whole.view(self._bits) == self._poison
        beside = int((~poisoned[:_BAND]).sum() + (~poisoned[-_BAND:]).sum())
        if beside:
            return f"{beside} elements written outside of the result"
        left = int(poisoned[_BAND:-_BAND].sum())
        return f"{left} of {self.tensor.numel()} elements not written" if left else ""


def surrounded(values: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides between bands of NaN; what lies between its rows is NaN too."""
    steps = zip(values.shape, values.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    whole = torch.full((extent + 2 * _BAND,), torch.nan, dtype=values.dtype, device=values.device)
    copy = whole.as_strided(values.shape, values.stride(), _BAND)
    copy.copy_(values)
    return copy
