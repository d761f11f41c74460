"""Raises when it is built."""

from __future__ import annotations

from spark_prof.swaps.layers import Layer, Replacement


def build(layer: Layer) -> Replacement | None:
    raise RuntimeError("made to fail when it is built")
