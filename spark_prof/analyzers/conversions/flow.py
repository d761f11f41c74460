"""Which kernel a conversion works for: one that comes after it on its stream.

A stream runs its kernels in the order in which they were launched, which is that of the code, also
inside a CUDA graph. Where a conversion was placed in a component, the next kernel of that component
is taken to read what it wrote; else the next kernel that converts nothing. That is a guess where a
program launches something unrelated in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import NameColumn
from spark_prof.analyzers.order import CODES
from spark_prof.analyzers.placement import COPIES

__all__ = ["Flow", "alone", "flow_of"]

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_TELL_NOTHING = (CODES["other"], CODES["norm"])
"""Components that say nothing about the consumer: what stands between a norm and a product was
often placed with the norm."""

_FURTHEST = 8
"""A consumer is looked for among so many kernels."""


@dataclass(frozen=True)
class Flow:
    """Conversions among the kernels; positions of rows, -1 for none.

    Attributes:
        rows: the conversions.
        consumers: what reads the result of each.
        producers: the last kernel before each that converts nothing.
        places: whose component and layer each counts to: its own, else its consumer's.
    """

    rows: Int64s
    consumers: Int64s
    producers: Int64s
    places: Int64s


def flow_of(placed: pd.DataFrame, converts: Flags) -> Flow:
    """The conversions, each between its producer and its consumer.

    Args:
        placed: kind, stream, step and component of everything that ran, in order of start.
        converts: whether each row is a conversion.
    """
    if not converts.any():
        return alone(converts)
    order = _in_lanes(placed)
    lane = _Lane(placed, order, np.flatnonzero(converts[order]))
    own = lane.component(lane.place)
    wanted = ~np.isin(own, _TELL_NOTHING)
    nearest = consumer = lane.beside(lane.place, lane.after(lane.place))
    for _ in range(_FURTHEST - 1):
        unmet = np.flatnonzero(wanted & (consumer >= 0) & (lane.component(consumer) != own))
        if not len(unmet):
            break
        consumer = consumer.copy()
        consumer[unmet] = lane.beside(lane.place[unmet], lane.after(consumer[unmet]))
    met = (consumer >= 0) & (~wanted | (lane.component(consumer) == own))
    consumer = np.where(met, consumer, nearest)
    producer = lane.beside(lane.place, lane.before(lane.place))
    place = np.where(wanted | (consumer < 0), lane.place, consumer)
    found = (lane.place, consumer, producer, place)
    return Flow(*(np.where(near >= 0, order[near], -1) for near in found))


def alone(converts: Flags) -> Flow:
    """The conversions where nothing tells what comes before or after them."""
    rows = np.flatnonzero(converts)
    nothing = np.full(len(rows), -1)
    return Flow(rows, nothing, nothing, rows)


class _Lane:
    """Kernels stream by stream, in which places are positions.

    Args:
        placed: everything that ran.
        order: the rows, stream by stream.
        place: places of the conversions, ascending.
    """

    def __init__(self, placed: pd.DataFrame, order: Int64s, place: Int64s) -> None:
        self.place = place
        self._order = order
        self._component = placed["component"].cat.codes.to_numpy()
        self._step, self._stream = placed["step"].to_numpy(), placed["stream"].to_numpy()
        # Conversions that follow each other are a run: first and last place of each one's run.
        self._run = np.cumsum(np.diff(place, prepend=place[:1]) > 1)
        self._last = place[np.append(np.flatnonzero(np.diff(self._run)), len(place) - 1)]
        self._first = place[np.append(0, np.flatnonzero(np.diff(self._run)) + 1)]

    def component(self, places: Int64s) -> npt.NDArray[np.integer[Any]]:
        """Code of the component at each place."""
        return self._component[self._order[places]]

    def after(self, places: Int64s) -> Int64s:
        """The next place of each that holds no conversion."""
        return self._skip(places + 1, self._last, 1)

    def before(self, places: Int64s) -> Int64s:
        """The place before each that holds no conversion."""
        return self._skip(places - 1, self._first, -1)

    def _skip(self, places: Int64s, ends: Int64s, by: int) -> Int64s:
        known = np.minimum(np.searchsorted(self.place, places), len(self.place) - 1)
        converts = self.place[known] == places
        return np.where(converts, ends[self._run[known]] + by, places)

    def beside(self, places: Int64s, near: Int64s) -> Int64s:
        """The places near others where they share step and stream, else -1."""
        there = (near >= 0) & (near < len(self._order))
        row, other = self._order[places], self._order[np.where(there, near, 0)]
        there &= self._step[row] == self._step[other]
        there &= self._stream[row] == self._stream[other]
        return np.where(there, near, -1)


def _in_lanes(placed: pd.DataFrame) -> Int64s:
    """Positions of the kernels, stream by stream, without copies."""
    copies = NameColumn(placed["kind"]).flags(lambda kind: kind in COPIES)
    kept = np.flatnonzero(~copies)
    stream = placed["stream"].to_numpy()[kept]
    if not len(stream) or (stream == stream[0]).all():
        return kept
    codes, known = pd.factorize(stream)
    # Few streams are sorted by counting.
    small = np.int16 if len(known) < 1 << 15 else np.int64
    return kept[np.argsort(codes.astype(small), kind="stable")]
