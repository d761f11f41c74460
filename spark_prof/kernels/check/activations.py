"""Activations for the cases."""

from __future__ import annotations

from typing import Literal

import torch

Tokens = Literal["plain", "NaN and infinity", "apart", "zeros", "with a common offset"]
"""What the rows hold: normal numbers; some NaN and infinities; magnitudes from 2^-60 to 2^60; a row
of zeros between others; numbers of which few cancel."""
Layout = Literal["contiguous", "rows apart", "columns apart", "transposed"]


def make_activations(
    kind: Tokens, tokens: int, columns: int, seed: int, device: str, layout: Layout = "contiguous"
) -> torch.Tensor:
    """A bfloat16 tensor [tokens, columns]; the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(tokens, columns, generator=generator)
    if kind == "NaN and infinity":
        values[0, columns // 3] = torch.nan
        values[tokens // 2, columns - 1] = torch.inf
        values[-1, 0] = -torch.inf
    elif kind == "apart":
        values *= torch.exp2(torch.linspace(-60, 60, tokens))[:, None]
    elif kind == "zeros":
        values[tokens // 2] = 0.0
        values[:, 1::3] = -0.0
    elif kind == "with a common offset":
        values += 3.0
    return _laid_out(values.to(torch.bfloat16).to(device), layout)


def _laid_out(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    if layout == "rows apart":
        return torch.cat([values, values.flip(0)], dim=1)[:, : values.shape[1]]
    if layout == "columns apart":
        return values.repeat_interleave(2, dim=1)[:, ::2]
    if layout == "transposed":
        return values.T.contiguous().T
    return values
