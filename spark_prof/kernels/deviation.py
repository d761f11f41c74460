"""How far a matrix that was quantized is from what it was."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["Deviation", "Differences"]


@dataclass(frozen=True)
class Deviation:
    """How far quantized values are from those that they stand for.

    Attributes:
        relative_l2: the L2 norm of the differences over that of the values.
        worst: the largest difference of an element, in the values' own unit.
        worst_at: its row and column.
        snr_db: signal to noise, -20 log10 of `relative_l2`; infinite without an error.
    """

    relative_l2: float
    worst: float
    worst_at: tuple[int, int]
    snr_db: float

    def __str__(self) -> str:
        """For a line of a report."""
        return f"{self.relative_l2:.2%} ({self.snr_db:.1f} dB, worst element {self.worst:.3g} off)"


class Differences:
    """Adds up the deviation of a matrix from its pieces, so that none need be whole in float64."""

    def __init__(self) -> None:
        self._signal = self._noise = self._worst = 0.0
        self._worst_at = (0, 0)

    def add(self, before: torch.Tensor, after: torch.Tensor, row: int, column: int) -> None:
        """Takes in a piece that begins at that row and column."""
        off = (after - before).abs()
        self._signal += float(before.square().sum())
        self._noise += float(off.square().sum())
        worst = float(off.max())
        if worst > self._worst:
            at = divmod(int(off.argmax()), off.shape[1])
            self._worst, self._worst_at = worst, (row + at[0], column + at[1])

    def deviation(self) -> Deviation:
        """That of all pieces together."""
        if not self._noise:
            return Deviation(0.0, 0.0, self._worst_at, math.inf)
        if not self._signal:
            return Deviation(math.inf, self._worst, self._worst_at, -math.inf)
        relative = math.sqrt(self._noise / self._signal)
        return Deviation(relative, self._worst, self._worst_at, -20 * math.log10(relative))
