"""Returns its result in float64."""

from __future__ import annotations

from changed import with_result

from spark_prof.swaps.layers import Layer, Replacement


def build(layer: Layer) -> Replacement | None:
    return with_result(layer, lambda result: result.double())
