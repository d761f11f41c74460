"""Several changes as one, such as that of all kernels of a typical step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from spark_prof.analyzers.comparing.comparison import PhaseComparison
from spark_prof.analyzers.comparing.noise import Change, Figure, change
from spark_prof.analyzers.step_time import GAPS


def point(a: float, b: float) -> Change:
    """The change of what has no noise."""
    return Change(a, b, b - a, b - a, b - a)


def combined(
    changes: Sequence[Change], of: Callable[..., Figure], otherwise: Change | None = None
) -> Change:
    """A figure of each recording's figures; a change without any is `otherwise`."""
    a, b = (
        [of(*figures) for figures in zip(*(part.figures[side] for part in changes), strict=True)]
        for side in (0, 1)
    )
    return change(a, b) if a and b else otherwise or point(0.0, 0.0)


def summed(changes: Sequence[Change]) -> Change:
    """Several changes as one; within a recording their errors are taken to go together."""

    def of(*figures: Figure) -> Figure:
        return Figure(
            sum(figure.value for figure in figures),
            sum(figure.error for figure in figures),
            min(figure.free for figure in figures),
            math.sqrt(sum(figure.floor**2 for figure in figures)),
            sum(figure.start for figure in figures),
        )

    exact = point(sum(part.a for part in changes), sum(part.b for part in changes))
    return combined(changes, of, exact)


def kernels_of(phase: PhaseComparison) -> Change:
    """The change of a typical step's kernels and copies, without what waits for the host."""
    return summed([part.change for part in phase.parts if part.name not in GAPS])


def scaled(whole: Change, a: float, b: float) -> Change:
    """A change with the figures of each side times a factor, such as that of a step by token."""
    ours, theirs = (
        [figure.times(factor) for figure in side]
        for side, factor in zip(whole.figures, (a, b), strict=True)
    )
    return change(ours, theirs) if ours and theirs else point(whole.a * a, whole.b * b)
