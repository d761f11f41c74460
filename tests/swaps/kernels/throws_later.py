"""Is right until its three hundredth call in a process, and raises from then on."""

from __future__ import annotations

from changed import before_result

from spark_prof.swaps.layers import Layer, Replacement

RIGHT = 300  # more than a trial of three layers takes

_calls: list[None] = []


def build(layer: Layer) -> Replacement | None:
    return before_result(layer, _fail_later)


def _fail_later() -> None:
    _calls.append(None)
    if len(_calls) > RIGHT:
        raise RuntimeError("made to fail while it serves")
