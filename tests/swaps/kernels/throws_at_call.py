"""Is built, and raises whenever it is called."""

from __future__ import annotations

from changed import before_result

from spark_prof.swaps.layers import Layer, Replacement


def build(layer: Layer) -> Replacement | None:
    return before_result(layer, _fail)


def _fail() -> None:
    raise RuntimeError("made to fail when it is called")
