"""Takes ten seconds for its first call in a process, in whichever layer that is."""

from __future__ import annotations

import time

from changed import before_result

from spark_prof.swaps.layers import Layer, Replacement

SECONDS = 10.0

_called: list[bool] = []


def build(layer: Layer) -> Replacement | None:
    return before_result(layer, _wait_once)


def _wait_once() -> None:
    if not _called:
        _called.append(True)
        time.sleep(SECONDS)
