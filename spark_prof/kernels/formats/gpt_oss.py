"""How gpt-oss checkpoints store the MXFP4 weights of their experts.

`*_blocks` are uint8 [E, N, K / 32, 16] and `*_scales` uint8 [E, N, K / 32]. Of `gate_up_proj`,
rows 0, 2, 4 ... are the gate and rows 1, 3, 5 ... are up (openai/gpt-oss, `gpt_oss/torch/
weights.py` and `model.py`).
"""

from __future__ import annotations

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.formats.mx import MxFp4

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
