"""What an A/B is of an engine that has swapped kernels already: both sides keep what runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_prof.analyzers.finding import Action
from spark_prof.traces.swapped import SwappedSlot

_TYPED = ("spark_prof", "mxfp4", "fp8")
"""Kernels that are this package's own: another is a file's, which nobody types for a recording."""
_INSIDE_LAYER = ("qkv", "moe", "router", "norm")
_STOCK = "stock"


def beside_swaps(action: Action, swaps: Sequence[SwappedSlot]) -> Action | None:
    """The A/B of the engine as it ran; None where it would try what runs, or cannot be typed.

    beside_swaps(Action("ab", ("--b", "moe=spark_prof")), [SwappedSlot("o", "mxfp4", 24)]).options
        == ("--a", "o=mxfp4", "--b", "o=mxfp4,moe=spark_prof")
    """
    if action.verb != "ab" or not swaps:
        return action
    if any(swap.kernel not in _TYPED for swap in swaps):
        return None
    running = {swap.slot: swap.kernel for swap in swaps}
    sides = _sides(action.options)
    a, b = (_side(running, sides.get(name, _STOCK)) for name in ("--a", "--b"))
    if a == b:
        return None
    return replace(action, options=("--a", a, "--b", b))


def _sides(options: Sequence[str]) -> Mapping[str, str]:
    """The text of each side: `--b x`, `--b=x`."""
    sides: dict[str, str] = {}
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        sides[name] = value if equals else next(words, "")
    return sides


def _side(running: Mapping[str, str], text: str) -> str:
    """What runs, and what a side tries beside it; a slot that runs another kernel keeps that."""
    new: dict[str, str] = {}
    options: list[str] = []
    for word in text.split():
        swaps = [part.partition("=") for part in word.split(",")]
        if not word.startswith("-") and all(equals for _, equals, _ in swaps):
            new |= {slot: kernel for slot, _, kernel in swaps}
        elif word != _STOCK:
            options.append(word)
    if "layer" in running:
        new = {slot: kernel for slot, kernel in new.items() if slot not in _INSIDE_LAYER}
    staying = {s: k for s, k in running.items() if "layer" not in new or s not in _INSIDE_LAYER}
    both = {**new, **staying} if "layer" in new else {**staying, **new, **staying}
    return " ".join([",".join(f"{slot}={kernel}" for slot, kernel in both.items()), *options])
