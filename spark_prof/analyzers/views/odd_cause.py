"""Says which kernel makes an odd layer odd."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from spark_prof.analyzers.views.makeup import Makeups, Part
from spark_prof.analyzers.views.odd import OddCell

_SAME_CALLS = 0.1
"""Calls of a step that differ by less are the same."""


@dataclass(frozen=True)
class Cause:
    """The kernel with the largest part of an odd layer's difference, in mean steps.

    Attributes:
        name: its place in the kernels' names.
        kind: other where only one side calls it; calls where one side calls it more often; time
            where its calls take another time.
        us: in a step of the odd layer, in microseconds.
        like_us: in a step of its like, median over them.
        calls: in a step of the odd layer.
        like_calls: in a step of its like, median over them.
    """

    name: int
    kind: Literal["other", "calls", "time"]
    us: float
    like_us: float
    calls: float
    like_calls: float


def cause_of(odd: OddCell, makeups: Makeups) -> Cause | None:
    """The kernel that makes the difference; None where mean steps do not show one.

    Args:
        odd: a layer that differs.
        makeups: of the same steps.
    """
    own = _parts(makeups, odd.layer, odd.component)
    like = [
        _parts(makeups, layer, odd.component) for layer in odd.like.layers if layer != odd.layer
    ]
    nothing = Part(-1, 0.0, 0.0)
    causes = []
    for name in {name for parts in (own, *like) for name in parts}:
        part = own.get(name, nothing)
        others = [parts.get(name, nothing) for parts in like]
        calls = median(other.calls for other in others)
        us = median(other.us for other in others)
        kind: Literal["other", "calls", "time"] = "time"
        if abs(part.calls - calls) >= _SAME_CALLS:
            kind = "calls" if part.calls and calls else "other"
        causes.append(Cause(name, kind, part.us, us, part.calls, calls))
    slower = odd.share > 0
    causes = [cause for cause in causes if (cause.us > cause.like_us) == slower]
    return max(causes, key=lambda cause: abs(cause.us - cause.like_us), default=None)


def _parts(makeups: Makeups, layer: int, component: str) -> dict[int, Part]:
    return {part.name: part for part in makeups.get((layer, component), ())}
