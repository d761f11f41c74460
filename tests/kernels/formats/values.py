"""Numbers on which formats are tested: every one of a narrow type, and the edges of a wide one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch


def every_byte() -> torch.Tensor:
    return torch.arange(256, dtype=torch.int32).to(torch.uint8)


def every_bfloat16() -> torch.Tensor:
    """All 65 536, with NaN, infinity and subnormal numbers."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def around(values: list[float]) -> torch.Tensor:
    """Each value, and the float32 before and after it, of both signs."""
    exact = np.array(values, np.float32)
    near = [np.nextafter(exact, np.float32(-math.inf)), np.nextafter(exact, np.float32(math.inf))]
    some = torch.from_numpy(np.concatenate([exact, *near]))
    return torch.cat([some, -some])


def nearest(value: float, table: list[float]) -> int:
    """Which entry of a rising table is the nearest; of two as near the even one."""
    distances = [abs(Fraction(entry) - Fraction(abs(value))) for entry in table]
    least = min(distances)
    return min(
        (i for i, distance in enumerate(distances) if distance == least), key=lambda i: i % 2
    )


def wild_blocks(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Bfloat16 of sizes that differ from block of 16 to block; a few are 0, -0 or alone."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=random)
    powers = torch.randint(-20, 20, (rows, columns // 16), generator=random)
    values *= torch.exp2(powers.float()).repeat_interleave(16, dim=1)
    values[torch.rand(rows, columns, generator=random) < 0.05] = 0.0
    values[torch.rand(rows, columns, generator=random) < 0.05] = -0.0
    values[0] = 0.0
    values[1, 1:] = 0.0
    return values.to(torch.bfloat16)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree to the last bit: -0 is not 0, NaN is NaN whatever its payload."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    one, other = one.to(torch.float64), other.to(torch.float64)
    nan = one.isnan() & other.isnan()
    return bool((nan | (one == other) & (torch.signbit(one) == torch.signbit(other))).all())
