"""What the passes that quantize on the way quantize: vLLM's separate kernels, in float64."""

from __future__ import annotations

import torch

from spark_prof.kernels.check.bound import Expected, exact, rounded

_ROUNDING = 2.0**-24
_ADDITIONS = 40
"""That a square goes through besides those in its thread: 5 in its warp, 32 over the warps, then
division and epsilon, and its own rounding."""
_THREADS = 1024
_ROOT = 4
"""Halves of a unit in the last place by which CUDA's rsqrtf may be off."""
_EXPONENTIAL = 2.0**-21
"""Of expf, off by a unit, 1 more and the division: four units in the last place are enough."""


def norm_oracle(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None
) -> Expected:
    """RMSNorm(x + residual) * weight in bfloat16, the sum being rounded to bfloat16 before.

    All squares are positive, so their sum is off by no more than the roundings that one of them
    goes through; the root halves that.

    Args:
        x: bfloat16 [M, K].
        weight: bfloat16 [K].
        residual: bfloat16 [M, K] or None, as it is before.
    """
    added = x if residual is None else (x.float() + residual.float()).to(torch.bfloat16)
    values = added.to(torch.float64)
    inverse = (values.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    normed = values * inverse * weight.to(torch.float64)
    in_thread = 8 * -(-x.shape[1] // (8 * _THREADS))
    products = 2
    roundings = (in_thread + _ADDITIONS) / 2 + _ROOT + products
    return rounded(Expected(normed, normed.abs() * roundings * _ROUNDING))


def activation_oracle(gate_up: torch.Tensor) -> Expected:
    """SiLU(gate) * up in bfloat16, SiLU being rounded to bfloat16 before.

    Args:
        gate_up: bfloat16 [M, 2 K], gate before up.
    """
    gate, up = (half.to(torch.float64) for half in gate_up.chunk(2, -1))
    exactly = gate * torch.sigmoid(gate)
    # Below -80 the exponential may overflow, and the result be 0.
    lost = torch.where(gate < -80, 2.0**-100, 0.0)
    silu = rounded(Expected(exactly, exactly.abs() * _EXPONENTIAL + lost))
    # vLLM adds 0 to up, so that -0 counts as 0.
    factor = up + 0.0
    value = silu.value * factor
    return rounded(Expected(value, silu.error * factor.abs() + value.abs() * _ROUNDING))


def expanded_oracle(x: torch.Tensor, token_of_row: torch.Tensor) -> Expected:
    """The rows of x [M, K] in the order of a list; zeros where it names no row."""
    there = (token_of_row >= 0) & (token_of_row < x.shape[0])
    rows = x[token_of_row.clamp(0, x.shape[0] - 1).long()]
    return exact(torch.where(there[:, None], rows, torch.zeros_like(rows)))
