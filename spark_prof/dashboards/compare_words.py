"""How a comparison writes its changes; its sections and its gate take them from here."""

from __future__ import annotations

import math

from spark_prof.analyzers.comparing.noise import Change
from spark_prof.dashboards.formats import MISSING, Figure, microseconds

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""What sides are called: the reference is a."""


def by_us(us: float) -> str:
    """A change with its sign: +12.3 us."""
    if not math.isfinite(us):
        return MISSING
    return Figure(f"+{microseconds(us)}", us) if us > 0 else microseconds(us)


def by_share(change: Change, us: float | None = None) -> str:
    """A change as a share of side a's figure: +3.1 %."""
    found = change.share(change.us if us is None else us)
    return Figure(f"{100 * found:+.1f} %", found) if math.isfinite(found) else "new"


def span(change: Change) -> str:
    """The interval of a change: -1.2 to +3.4 us; a dash where it is not known."""
    if not math.isfinite(change.low) or not math.isfinite(change.high):
        return MISSING
    low, high = by_us(change.low), by_us(change.high)
    value, unit = low.rsplit(" ", 1)
    return f"{value} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def verdict(change: Change) -> str:
    """What a change is: slower or faster where noise cannot explain it; a dash if it is unknown."""
    if not math.isfinite(change.low):
        return MISSING
    if not change.sure:
        return "noise"
    return "slower" if change.us > 0 else "faster"
