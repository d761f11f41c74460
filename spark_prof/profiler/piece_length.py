"""How many steps a piece may have, so that the engine does not wait long for its writing.

A backend whose cost grows with what it saw says by an attribute `fixed_seconds` what a piece costs
that holds nothing. What a step adds is then told by the last pieces; on which model, batch size and
machine it depends need not be known. A step that alone costs more than the pause has a piece of its
own. Where nothing is written fast, pieces are not made ever shorter for that.
"""

from __future__ import annotations

from collections import deque
from statistics import median

PAUSE_SECONDS = 0.015
"""What writing a piece shall take; it takes longer where other processes want the processor."""

_LOOKED_AT = 3  # pieces; one that the machine was slow for says nothing
_GROWTH = 4  # times as many steps as in the piece before


class PieceLength:
    """The steps after which a piece is written.

    Example:
        >>> length = PieceLength(most=256, fixed_s=0.001)
        >>> length.steps
        1
        >>> length.wrote(1, 0.006)
        >>> length.steps
        2
    """

    def __init__(self, most: int, fixed_s: float | None = None) -> None:
        self._most, self._fixed_s = most, fixed_s
        self._pause_s = max(PAUSE_SECONDS, 2 * (fixed_s or 0.0))
        self._costs: deque[float] = deque(maxlen=_LOOKED_AT)
        self.steps = most if fixed_s is None else 1

    def wrote(self, steps: int, seconds: float) -> None:
        """Takes in how long a piece of so many steps took to write."""
        if self._fixed_s is None or steps < 1:
            return
        self._costs.append((seconds - self._fixed_s) / steps)
        fit = (self._pause_s - self._fixed_s) / max(median(self._costs), 1e-9)
        self.steps = int(max(1, min(fit, self._most, _GROWTH * steps)))
