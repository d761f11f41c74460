"""Compares quantized rows bit by bit, wherever float32 leaves no doubt about the bits."""

from __future__ import annotations

import torch

from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.verdict import Judgement
from spark_prof.kernels.formats import GlobalScale, MxFp8, NvFp4, quantize_mxfp8, quantize_nvfp4

_NUDGE = 2.0**-20
"""More than two approximate reciprocals of a GPU and the products after them are off by."""
_LEAST_CERTAIN = 0.8


def judge_quantized(
    got: NvFp4 | MxFp8,
    expected: Expected,
    global_scale: GlobalScale | None,
) -> Judgement:
    """Compares codes and scales with those of what should have been quantized.

    A value that may be rounded to either of two numbers of bfloat16, or that lies so near to a
    midpoint that a GPU's reciprocals decide, says nothing of its block: of each block all
    possibilities are quantized, and it counts where they agree. Fewer than 80 % fail.

    Args:
        got: what a kernel wrote, its scales not swizzled.
        expected: what it quantized, and how far off that may be.
        global_scale: NVFP4 only.
    """
    # A sum would take the sign from -0.
    ends = (
        torch.where(expected.error == 0, expected.value, expected.value + sign * expected.error)
        for sign in (-1, 1)
    )
    approximate = global_scale is not None and expected.value.device.type == "cuda"
    nudges = (1 - _NUDGE, 1 + _NUDGE) if approximate else (1.0,)
    possible = [
        _bytes_of_blocks(
            quantize_mxfp8(end.float() * nudge)
            if global_scale is None
            else quantize_nvfp4(end.float() * nudge, global_scale, "reciprocal")
        )
        for end in ends
        for nudge in nudges
    ]
    first = possible[0]
    certain = torch.stack([(first == other).all(-1) for other in possible]).all(0)
    wrong = certain & (_bytes_of_blocks(got) != first).any(-1)
    if wrong.any():
        row, block = (int(i) for i in wrong.nonzero()[0])
        seen, wanted = (b[row, block].tolist() for b in (_bytes_of_blocks(got), first))
        detail = (
            f"{int(wrong.sum())} of {wrong.numel()} blocks wrong, first row {row} block {block}: "
            f"scale {seen[-1]} codes {bytes(seen[:-1]).hex()}, expected {wanted[-1]} "
            f"{bytes(wanted[:-1]).hex()}"
        )
        return Judgement(None, detail)
    share = float(certain.float().mean())
    if share < _LEAST_CERTAIN:
        return Judgement(None, f"only {share:.0%} of the blocks have certain bits")
    return Judgement(None, "")


def _bytes_of_blocks(rows: NvFp4 | MxFp8) -> torch.Tensor:
    """Each block's bytes of codes and then its scale: uint8 [M, blocks, ...]."""
    codes = rows.packed if isinstance(rows, NvFp4) else rows.values.view(torch.uint8)
    scales = rows.scales.view(torch.uint8).unsqueeze(-1)
    return torch.cat([codes.unflatten(-1, (scales.shape[-2], -1)), scales], dim=-1)
