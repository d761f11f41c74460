"""Which side this process computes at the moment.

Switching costs nothing: the dispatchers of eager layers and the CUDA graphs of `graphs.py` look at
`SIDES.active` when they are called.
"""

from __future__ import annotations

from dataclasses import dataclass

TWIN = "a2"
"""Side a once more, with CUDA graphs of its own: what an A/A run compares side a with."""


@dataclass
class Sides:
    """The sides that are live in this process.

    Attributes:
        names: all of them; the first is what vLLM warms up with.
    """

    active: str = "a"
    names: tuple[str, ...] = ("a",)

    def switch(self, side: str) -> None:
        """Makes a side the active one.

        Raises:
            ValueError: there is no such side.
        """
        if side not in self.names:
            raise ValueError(f"there is no side {side}; there are {', '.join(self.names)}")
        self.active = side


SIDES = Sides()
"""Those of this process."""


def plain_side(side: str) -> str:
    """The side whose swaps a side has: its own, or a's for the twin."""
    return "a" if side == TWIN else side
