"""Asks for more memory than any machine has when it is built."""

from __future__ import annotations

import torch

from spark_prof.swaps.layers import Layer, Replacement

ELEMENTS = 1 << 50


def build(layer: Layer) -> Replacement | None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.empty(ELEMENTS, dtype=torch.bfloat16, device=device)
    return None
