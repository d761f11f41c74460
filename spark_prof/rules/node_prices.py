"""What a node of a CUDA graph costs at least, on GPUs where that was measured.

A row is what `python benchmarks/node_price.py` printed there, or the quantities that `spark-prof
doctor --measure` keeps. A GPU without a row has no price: its bound is that of bytes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SERIAL = ("node_serial", "node_serial_wide")
DEPENDENT = ("node_dependent", "node_dependent_wide")
"""What `doctor --measure` calls chains of empty kernels, by one block and by one on each SM."""


@dataclass(frozen=True)
class NodePrice:
    """By how much a chain of kernels that do nothing takes longer for one more, in us.

    Of one block each, starting early may cost more than it saves, as on the H200.
    """

    serial_us: float  # each starts when the one before it has ended
    dependent_us: float  # each starts earlier and waits (programmatic dependent launch)
    source: str  # who measured it, where and when

    @property
    def least_us(self) -> float:
        """What a node costs of which nothing tells how it depends on the one before it."""
        return min(self.serial_us, self.dependent_us)


NODE_PRICES: Mapping[str, NodePrice] = {
    "h200": NodePrice(
        0.500,
        0.576,
        "measured in this project on an H200, CUDA 13.0, torch 2.11.0, 2026-11-29: chains of 128 "
        "and 1,024 empty kernels",
    )
}
"""By the GPU's short name in rules/gpus.py."""
