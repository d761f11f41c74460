"""Asks for more memory than any machine has whenever it is called."""

from __future__ import annotations

from changed import with_result

from spark_prof.swaps.layers import Layer, Replacement

ELEMENTS = 1 << 50


def build(layer: Layer) -> Replacement | None:
    return with_result(layer, lambda result: result + result.new_empty(ELEMENTS)[0])
