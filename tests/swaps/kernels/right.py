"""A right kernel for every slot: what a run without a fault is tested with."""

from __future__ import annotations

from torch_layers import build

__all__ = ["build"]
