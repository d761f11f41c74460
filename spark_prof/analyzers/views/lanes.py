"""How long what ran in each bin of a range, exactly: no instant of a lane counts twice.

Where kernels of a lane overlap, the time that they share counts to the one that began first. Then
the times of a lane are disjoint and in order, and a bin's are their sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.views.columns import KernelColumns

Int64s = npt.NDArray[np.int64]

_BLOCK = 1 << 16
"""Rows that are looked at together: what is computed of them stays in the processor's cache."""

_LANES = 8


@dataclass(frozen=True)
class Kernels:
    """The kernels that run, or begin, in a range.

    Attributes:
        earlier: places of those that began before it and still ran, in order of start.
        first: place of the first one that began in it.
        last: place behind the last one.
    """

    earlier: Int64s
    first: int
    last: int

    def __len__(self) -> int:
        return len(self.earlier) + self.last - self.first

    def places(self) -> Int64s:
        """All of them, in order of start."""
        return np.append(self.earlier, np.arange(self.first, self.last))


def kernels_between(columns: KernelColumns, from_ns: int, to_ns: int) -> Kernels:
    """Finds the kernels of a range, which holds its first instant and not its last one."""
    first, last = np.searchsorted(columns.start_ns, [from_ns, to_ns]).tolist()
    return Kernels(np.flatnonzero(columns.end_ns[:first] > from_ns), first, last)


def in_blocks(kernels: Kernels, lanes: int = 1) -> Iterator[Int64s | slice]:
    """The same kernels in order of start, so many at a time that each lane has some."""
    rows = _BLOCK * (1 + lanes // _LANES)
    for begin in range(0, len(kernels.earlier), rows):
        yield kernels.earlier[begin : begin + rows]
    for begin in range(kernels.first, kernels.last, rows):
        yield slice(begin, min(begin + rows, kernels.last))


def bin_edges(from_ns: int, to_ns: int, bins: int) -> Int64s:
    """Where the bins of a range begin, and its end; none is shorter than 1 ns."""
    bins = max(min(bins, to_ns - from_ns), 1)
    # As Python numbers: the product of two long times is too large for 64 bits.
    return np.array([from_ns + (to_ns - from_ns) * k // bins for k in range(bins + 1)], np.int64)


@dataclass(frozen=True)
class Stretches:
    """Kernels of one lane, cut so that none overlaps: the arrays ascend.

    Attributes:
        begin_ns: from when on each is the one that counts.
        end_ns: until when; the same for one that ran only while earlier ones did.
        before_ns: until when anything ran before each.
    """

    begin_ns: Int64s
    end_ns: Int64s
    before_ns: Int64s

    @classmethod
    def of(cls, start_ns: Int64s, end_ns: Int64s, reached_ns: int, to_ns: int) -> Stretches:
        """Cuts kernels.

        Args:
            start_ns: ascending.
            end_ns: of each.
            reached_ns: until when the lane is spoken for already.
            to_ns: what is behind it is cut off.
        """
        reached = np.maximum(end_ns, start_ns)
        np.minimum(reached, to_ns, out=reached)
        np.maximum.accumulate(reached, out=reached)
        np.maximum(reached, reached_ns, out=reached)
        before = np.empty_like(reached)
        before[:1] = reached_ns
        before[1:] = reached[:-1]
        return cls(np.maximum(start_ns, before), reached, before)


class LaneBins:
    """What ran in each bin of one lane, by kind; kernels are added in order of start.

    Attributes:
        edges: of the bins, one more than there are.
        busy_ns: by bin and kind.
        kernels: that began in each bin, or were running when the range began.
        first: place of the first of them, -1 for none.
    """

    def __init__(self, edges: Int64s, kinds: int) -> None:
        bins = len(edges) - 1
        self.edges = edges
        self.busy_ns = np.zeros((bins, kinds), np.int64)
        self.kernels = np.zeros(bins, np.int64)
        self.first = np.full(bins, -1, np.int64)

    def add(self, cut: Stretches, kind: npt.NDArray[np.integer[Any]]) -> None:
        """Adds the time of kernels, each of one kind."""
        bins, kinds = self.busy_ns.shape
        inner = self.edges[1:-1]
        ends = np.append(np.searchsorted(cut.begin_ns, inner), len(kind))
        cells = np.repeat(np.arange(0, bins * kinds, kinds), np.diff(ends, prepend=0))
        cells += kind
        # No sum reaches 2**53 ns, so that as floating-point numbers they are exact.
        took = np.bincount(cells, weights=cut.end_ns - cut.begin_ns, minlength=bins * kinds)
        self.busy_ns += took.astype(np.int64).reshape(bins, kinds)
        # Only the last stretch before an edge can reach over it: they are disjoint.
        last = np.maximum(ends[:-1] - 1, 0)
        over = np.where(ends[:-1] > 0, cut.end_ns[last] - inner, 0)
        edge = np.flatnonzero(over > 0)
        kinds_over = kind[last[edge]]
        self.busy_ns[edge, kinds_over] -= over[edge]
        self.busy_ns[edge + 1, kinds_over] += over[edge]

    def count(self, start_ns: Int64s, places: Int64s) -> None:
        """Counts kernels where they begin.

        Args:
            start_ns: ascending.
            places: of these kernels in their columns.
        """
        ends = np.append(np.searchsorted(start_ns, self.edges[1:-1]), len(start_ns))
        begun = np.diff(ends, prepend=0)
        new = np.flatnonzero((begun > 0) & (self.first < 0))
        self.first[new] = places[ends[new] - begun[new]]
        self.kernels += begun

    def halved(self) -> LaneBins:
        """The same in half as many bins."""
        kept = np.arange(0, len(self.kernels), 2)
        found = LaneBins(np.append(self.edges[kept], self.edges[-1]), self.busy_ns.shape[1])
        found.busy_ns = np.add.reduceat(self.busy_ns, kept)
        found.kernels = np.add.reduceat(self.kernels, kept)
        # Places ascend with the bins, and -1 is none.
        unsigned = self.first.view(np.uint64)
        found.first = np.minimum.reduceat(unsigned, kept).view(np.int64)
        return found
