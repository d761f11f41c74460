"""The marks of a time line: what is drawn of a lane, each mark with the time that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.views.lanes import LaneBins

Int64s = npt.NDArray[np.int64]

_LEVELS = 16
"""Bins are alike whose busy shares fall into the same one of so many steps."""

_LONGEST_RUN = 16
"""A mark covers at most one of so many parts of the range, so that a click on it leads further."""


@dataclass(frozen=True)
class Marks:
    """What is drawn, one row a mark; the arrays have one length. Times are ns.

    Attributes:
        lane: place of its lane, from above.
        begin_ns: from when.
        end_ns: until when; of one kernel as it was recorded, also where that is not in the range.
        busy_ns: how long something of the lane ran in that time and in the range.
        component: that took most of it, as a place in `vocabulary.COMPONENTS`; -1 for none.
        first: lowest layer or step that it stands for, -1 for none.
        last: the highest one.
        phase: of its steps, as a place in `vocabulary.PHASES`; -1 for none, or several.
        kernels: that began in it.
        kernel: place of the only one in its rank's columns, -1 where it stands for more.
    """

    lane: npt.NDArray[np.int16]
    begin_ns: Int64s
    end_ns: Int64s
    busy_ns: Int64s
    component: npt.NDArray[np.int8]
    first: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    phase: npt.NDArray[np.int8]
    kernels: Int64s
    kernel: Int64s

    def __len__(self) -> int:
        return len(self.lane)

    @classmethod
    def of(
        cls,
        lane: int,
        begin_ns: Int64s,
        end_ns: Int64s,
        busy_ns: Int64s,
        *,
        component: npt.NDArray[Any] | int = -1,
        first: npt.NDArray[Any] | int = -1,
        last: npt.NDArray[Any] | int = -1,
        phase: npt.NDArray[Any] | int = -1,
        kernels: npt.NDArray[Any] | int = 0,
        kernel: npt.NDArray[Any] | int = -1,
    ) -> Marks:
        """Marks of one lane; a number stands for all of them."""

        def column(value: npt.NDArray[Any] | int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            return np.broadcast_to(np.asarray(value, dtype), begin_ns.shape)

        return cls(
            column(lane, np.int16),
            begin_ns,
            end_ns,
            busy_ns,
            column(component, np.int8),
            column(first, np.int32),
            column(last, np.int32),
            column(phase, np.int8),
            column(kernels, np.int64),
            column(kernel, np.int64),
        )

    @classmethod
    def joined(cls, parts: Sequence[Marks]) -> Marks:
        """All of several."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    def taken(self, rows: npt.NDArray[Any] | slice) -> Marks:
        """Some of them."""
        return Marks(*(getattr(self, field.name)[rows] for field in fields(self)))


def bin_marks(lane: int, bins: LaneBins, components: npt.NDArray[np.uint8]) -> Marks:
    """The bins in which something ran; neighbours with the same component and level become one.

    Args:
        lane: place of the lane.
        bins: by component.
        components: of all kernels of the rank; they tell what a bin holds that took no time.
    """
    busy = bins.busy_ns.sum(axis=1)
    component = bins.busy_ns.argmax(axis=1)
    timeless = np.flatnonzero((busy == 0) & (bins.kernels > 0))
    component[timeless] = components[bins.first[timeless]]
    used = np.flatnonzero((busy > 0) | (bins.kernels > 0))
    opens = runs(_apart(used), component[used], _level(busy, bins)[used], used // _most(bins))
    begin, end = used[opens], used[np.append(opens, len(used))[1:] - 1] + 1
    return Marks.of(
        lane,
        bins.edges[begin],
        bins.edges[end],
        sums(busy[used], opens),
        component=component[begin],
        kernels=sums(bins.kernels[used], opens),
    )


def layer_marks(lane: int, bins: LaneBins) -> Marks:
    """The bins in which a layer ran, kind k being layer k - 1; like neighbours become one."""
    layers = bins.busy_ns[:, 1:]
    busy = layers.sum(axis=1)
    used = np.flatnonzero(busy > 0)
    if not len(used):
        return Marks.of(lane, *[np.zeros(0, np.int64)] * 3)
    ran = layers[used] > 0
    first = ran.argmax(axis=1)
    last = ran.shape[1] - 1 - ran[:, ::-1].argmax(axis=1)
    opens = runs(_apart(used), first, last, _level(busy, bins)[used], used // _most(bins))
    begin, end = used[opens], used[np.append(opens, len(used))[1:] - 1] + 1
    return Marks.of(
        lane,
        bins.edges[begin],
        bins.edges[end],
        sums(busy[used], opens),
        first=first[opens],
        last=last[opens],
    )


def runs(*same: npt.NDArray[Any]) -> Int64s:
    """The rows that open a run of rows with the same values."""
    opens = np.ones(len(same[0]), bool)
    opens[1:] = False
    for column in same:
        opens[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(opens)


def _apart(used: Int64s) -> Int64s:
    """A number for each bin, the same for neighbours."""
    return used - np.arange(len(used))


def _level(busy: Int64s, bins: LaneBins) -> Int64s:
    """How full each bin is; only one in which nothing idles has the highest level."""
    length = np.diff(bins.edges)
    level: Int64s = np.where(busy < length, (busy / length * _LEVELS).astype(np.int64), _LEVELS + 1)
    return level


def _most(bins: LaneBins) -> int:
    return max(len(bins.kernels) // _LONGEST_RUN, 1)


def sums(values: Int64s, opens: Int64s) -> Int64s:
    """The sum of each run."""
    return np.add.reduceat(values, opens) if len(opens) else np.zeros(0, np.int64)
