"""A straight line through points some of which are far off, with an interval of its slope.

The slope is the weighted median of the slopes between all pairs of points, each pair weighted by
how far apart it is: a fifth of the points may lie anywhere. Neighbours along x vary together, so
the interval is that of a jackknife over stretches of neighbours: a line that is none, or that one
end alone bends, gets a wide one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.arrays import Floats

FEWEST = 12
"""Points below which there is no line."""
_MOST = 240  # points of which all pairs are looked at; of more, medians of neighbours are
_STRETCHES = 10
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Line:
    """y = base + slope x."""

    base: float
    slope: float
    low: float  # lower end of the slope's 95 % interval
    high: float
    off: float  # the largest distance from it of a stretch's median y, as share of that y

    def at(self, x: float) -> float:
        """The y of an x.

        Line(2.0, 0.5, 0.5, 0.5, 0.0).at(4) == 4.0
        """
        return self.base + self.slope * x


def robust_line(x: Floats, y: Floats) -> Line | None:
    """The line through these points; None of fewer than 12, or where all have one x.

    robust_line(x, 3 + 2 * x).slope == 2.0
    """
    if len(x) < FEWEST:
        return None
    order = np.argsort(x, kind="stable")
    x, y = _medians(x[order], y[order], _MOST)
    slope = _slope(x, y)
    if slope is None:
        return None
    stretch = np.arange(len(x)) * _STRETCHES // len(x)
    parts = [_slope(x[stretch != at], y[stretch != at]) for at in range(_STRETCHES)]
    slopes = np.array([part for part in parts if part is not None])
    if len(slopes) < _STRETCHES:
        return None
    error = np.sqrt((_STRETCHES - 1) / _STRETCHES * ((slopes - slopes.mean()) ** 2).sum())
    within = float(error) * student_quantile((1 + _CONFIDENCE) / 2, _STRETCHES - 1)
    base = float(np.median(y - slope * x))
    means, middles = _medians(x, y, _STRETCHES)
    far = np.abs(middles - base - slope * means) / np.maximum(np.abs(middles), 1e-12)
    return Line(base, slope, slope - within, slope + within, float(far.max()))


def _medians(x: Floats, y: Floats, most: int) -> tuple[Floats, Floats]:
    """Mean x and median y of so many stretches of neighbours, where there are more points."""
    if len(x) <= most:
        return x, y
    parts = np.array_split(np.arange(len(x)), most)
    means = np.array([x[part].mean() for part in parts])
    return means, np.array([float(np.median(y[part])) for part in parts])


def _slope(x: Floats, y: Floats) -> float | None:
    """The weighted median of the slopes between all pairs; None where all have one x."""
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] - x[first]
    distinct = apart > 0
    if not distinct.any():
        return None
    slopes = (y[second] - y[first])[distinct] / apart[distinct]
    order = np.argsort(slopes)
    weights = np.cumsum(apart[distinct][order])
    middle = int(np.searchsorted(weights, weights[-1] / 2))
    return float(slopes[order[middle]])
