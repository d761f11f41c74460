"""Shares of something by what it is, as a sentence says them."""

from __future__ import annotations

from collections.abc import Iterable

_SMALLEST = 0.0005
"""What would be written as nothing is left out."""


def shares(parts: Iterable[tuple[str, float]]) -> str:
    """The parts of a whole by name, the largest first: 65.5 % bf16, 34.5 % fp4.

    Args:
        parts: a name and how much; names may come more than once.
    """
    found: dict[str, float] = {}
    for name, amount in parts:
        found[name] = found.get(name, 0.0) + amount
    total = sum(found.values())
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{100 * amount / total:.1f} % {name}"
        for name, amount in ordered
        if total and amount >= _SMALLEST * total
    )
