"""A right kernel with something done around it, for the faulty ones beside this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch_layers import build as right

from spark_prof.swaps.layers import Layer, Replacement

Change = Callable[[torch.Tensor], torch.Tensor]


def with_result(layer: Layer, change: Change) -> Replacement | None:
    """The right kernel; `change` makes of its first result what it returns."""
    replacement = right(layer)
    if replacement is None:
        return None
    run = replacement.run

    def changed(*arguments: Any) -> Any:
        result = run(*arguments)
        return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)

    return replace(replacement, run=changed)


def before_result(layer: Layer, act: Callable[[], None]) -> Replacement | None:
    """The right kernel; `act` is called before each of its calls."""
    replacement = right(layer)
    if replacement is None:
        return None
    run = replacement.run

    def late(*arguments: Any) -> Any:
        act()
        return run(*arguments)

    return replace(replacement, run=late)
