"""How far the clock of one host is from that of another, out of what happened between them.

Nobody can leave a collective before the last participant has entered it. For a participant on
each side this bounds the offset from above (ended there - started here) and from below (started
there - ended here), however long anybody waited: the tightest bounds of all collectives hold for
any network. Inside them the offset is taken from the ends, which lie near together. Where no
collective joins two hosts, the scheduler's record gives bounds of the same kind: no worker begins
a step before it is scheduled, and none whose result is awaited ends it after it was taken in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BLOCKS = 32
_FEWEST_BLOCKS = 8
_DRIFT_SPAN_NS = 100_000_000
_LARGEST_DRIFT = 1e-3
_STRETCHES = 8
_FEWEST_IN_STRETCH = 16
TIMER_NS = 2_000
"""By how much device times of one host may disagree: the driver converts GPU ticks."""


@dataclass(frozen=True)
class Offset:
    """A clock against the reference clock, in ns: positive where it is ahead."""

    ns: float  # the offset at `at_ns`
    drift: float  # by how much it grows, in ns per ns
    at_ns: int  # a time by that clock
    uncertainty_ns: float  # the true offset lies no further away, at any time of the recording
    events: int  # collectives or steps that it stands on
    basis: str  # collectives or scheduler

    def at(self, time_ns: Int64s) -> Int64s:
        """What to take from times by that clock to get times by the reference clock."""
        drifted = self.drift * (time_ns - self.at_ns).astype(np.float64)
        found: Int64s = np.rint(self.ns + drifted).astype(np.int64)
        return found


def offset_of_collectives(
    here_start: Int64s, here_end: Int64s, there_start: Int64s, there_end: Int64s
) -> Offset | None:
    """The offset of the clock `there`; None where the bounds contradict each other.

    Args:
        here_start: for each collective the latest start by the reference clock.
        here_end: the earliest end by the reference clock.
        there_start: the latest start by the other clock.
        there_end: the earliest end by the other clock.
    """
    if not len(here_start):
        return None
    origin = int(there_end[0] - here_end[0])
    at_ns = int(np.median(there_end))
    time = (there_end - at_ns).astype(np.float64)
    between_ends = (there_end - here_end - origin).astype(np.float64)
    drift = _drift(time, between_ends)
    upper = (there_end - here_start - origin) - drift * time
    lower = (there_start - here_end - origin) - drift * time
    middle = float(np.median(between_ends - drift * time))
    bounds = _bounds(time, lower, upper)
    return _within(bounds, middle, origin, drift, at_ns, len(time), "collectives")


def offset_of_steps(
    scheduled: Int64s, start: Int64s, updated: Int64s, end: Int64s
) -> Offset | None:
    """The offset of a worker's clock against its scheduler's; None where the bounds contradict.

    Args:
        scheduled: when each step's scheduling began, by the scheduler's clock.
        start: when the worker began it, by its own.
        updated: when the scheduler had taken in each awaited step, by its clock.
        end: when the worker that was waited for had ended it, by its own.
    """
    if not len(scheduled) or not len(updated):
        return None
    origin = int(start[0] - scheduled[0])
    upper = float((start - scheduled - origin).min())
    lower = float((end - updated - origin).max())
    at_ns = int(np.median(start))
    return _within(
        [(lower, upper)], (lower + upper) / 2, origin, 0.0, at_ns, len(scheduled), "scheduler"
    )


def _bounds(time: Floats, lower: Floats, upper: Floats) -> list[tuple[float, float]]:
    """The tightest bounds of each stretch of time: drift that is left shows between stretches."""
    order = np.argsort(time, kind="stable")
    stretches = max(min(_STRETCHES, len(order) // _FEWEST_IN_STRETCH), 1)
    return [
        (float(lower[part].max()), float(upper[part].min()))
        for part in np.array_split(order, stretches)
    ]


def _within(
    bounds: Sequence[tuple[float, float]],
    middle: float,
    origin: int,
    drift: float,
    at_ns: int,
    events: int,
    basis: str,
) -> Offset | None:
    """The offset nearest to `middle` that all bounds allow; None where a stretch allows none."""
    if any(lower > upper + TIMER_NS for lower, upper in bounds):
        return None
    least, most = max(lower for lower, _ in bounds), min(upper for _, upper in bounds)
    found = min(max(middle, least), most) if least <= most else middle
    # The timers' own error is on both sides of the bounds.
    wide = max(max(upper - found, found - lower) for lower, upper in bounds) + TIMER_NS
    return Offset(origin + found, drift, at_ns, wide, events, basis)


def _drift(time: Floats, between_ends: Floats) -> float:
    """Slope of the ends' distance over time; 0 where the recording is too short to tell.

    The median slope between medians of blocks: single late ends change nothing.
    """
    order = np.argsort(time, kind="stable")
    blocks = [b for b in np.array_split(order, min(_BLOCKS, len(order))) if len(b)]
    if len(blocks) < _FEWEST_BLOCKS or np.ptp(time) < _DRIFT_SPAN_NS:
        return 0.0
    x = np.array([np.median(time[b]) for b in blocks])
    y = np.array([np.median(between_ends[b]) for b in blocks])
    left, right = np.triu_indices(len(blocks), 1)
    apart = x[right] - x[left]
    slopes = (y[right] - y[left])[apart > 0] / apart[apart > 0]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    noise = float(np.median(np.abs(y - slope * x - np.median(y - slope * x))))
    told = abs(slope) * float(np.ptp(x)) > 3 * noise
    return slope if told and abs(slope) < _LARGEST_DRIFT else 0.0
