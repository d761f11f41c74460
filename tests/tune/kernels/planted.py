"""Kernels that a tune must not choose, and one that it must: each function here is a builder."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from spark_prof.swaps.layers import Layer, Replacement
from tests.swaps.kernels.faulty import doubled_scale, right

SLOW_S = 0.01


def fast(layer: Layer) -> Replacement:
    """A right kernel."""
    return right(layer)


def slow(layer: Layer) -> Replacement:
    """A right kernel that takes ten milliseconds more."""
    replacement = right(layer)
    run = replacement.run

    def late(*arguments: Any) -> Any:
        time.sleep(SLOW_S)
        return run(*arguments)

    return replace(replacement, run=late)


def wrong(layer: Layer) -> Replacement:
    """Twice the right result."""
    return doubled_scale(layer)


def crashes(layer: Layer) -> Replacement:
    """Ends the process while it is built."""
    os._exit(9)


def hangs(layer: Layer) -> Replacement:
    """Never comes back from its first call."""
    replacement = right(layer)

    def wait(*_: Any) -> Any:
        time.sleep(3600)

    return replace(replacement, run=wait)
