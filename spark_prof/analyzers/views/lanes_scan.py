"""One look at the kernels of a range: time by bin for the whole device and for each stream."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.lookup import at_once
from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.analyzers.views.lanes import (
    Kernels,
    LaneBins,
    Stretches,
    bin_edges,
    in_blocks,
)
from spark_prof.vocabulary import COMPONENTS

GAPS = 20
"""So many of the longest gaps of a range are told."""

_LAYERS = 512
"""Layers above this one are drawn as this one."""


@dataclass(frozen=True)
class Gap:
    """A time in which nothing ran on the device, as far as it lies in the range.

    Attributes:
        begin_ns: from when.
        end_ns: until when.
        before: place of the kernel that ended last before it, -1 for none.
        after: place of the kernel that began next, -1 for none.
    """

    begin_ns: int
    end_ns: int
    before: int
    after: int

    @property
    def length_ns(self) -> int:
        """How long nothing ran."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Scan:
    """What ran in a range.

    Attributes:
        device: all streams as one lane, by component.
        layers: the same by layer plus 1: kind 0 is no layer.
        streams: each stream that has a kernel in the range, by component.
        gaps: the longest ones, the longest first.
    """

    device: LaneBins
    layers: LaneBins
    streams: Mapping[int, LaneBins]
    gaps: tuple[Gap, ...]


def scan(columns: KernelColumns, kernels: Kernels, from_ns: int, to_ns: int, bins: int) -> Scan:
    """Looks once at each kernel.

    Args:
        columns: of a rank.
        kernels: those of the range.
        from_ns: the range, on the clock of the columns.
        to_ns: its end.
        bins: how many at most.
    """
    edges = bin_edges(from_ns, to_ns, bins)
    whole = _Device(columns, kernels, edges)
    if len(columns.streams) < 2:
        whole.look()
        streams = {0: whole.bins} if len(kernels) else {}
    else:
        lanes = _Streams(columns, kernels, edges)
        at_once(whole.look, lanes.look)
        streams = dict(sorted(lanes.bins.items()))
    return Scan(whole.bins, whole.layers, streams, whole.longest_gaps())


class _Device:
    """All kernels as one lane."""

    def __init__(
        self, columns: KernelColumns, kernels: Kernels, edges: npt.NDArray[np.int64]
    ) -> None:
        self._columns, self._kernels = columns, kernels
        self._from, self._to = int(edges[0]), int(edges[-1])
        first, last = kernels.first, kernels.last
        layers = columns.layer[first:last], columns.layer[kernels.earlier]
        highest = max(int(part.max(initial=-1)) for part in layers)
        self.bins = LaneBins(edges, len(COMPONENTS))
        self.layers = LaneBins(edges, min(highest, _LAYERS) + 2)
        self._gaps: list[Gap] = []
        self._reached = self._from
        # What ended last of all that began before the range.
        self._ended = int(columns.end_ns[:first].argmax()) if first else -1

    def look(self) -> None:
        columns = self._columns
        for block in in_blocks(self._kernels):
            start = np.maximum(columns.start_ns[block], self._from)
            places = block if isinstance(block, np.ndarray) else np.arange(block.start, block.stop)
            cut = Stretches.of(start, columns.end_ns[block], self._reached, self._to)
            self.bins.add(cut, columns.component[block])
            self.bins.count(start, places)
            self.layers.add(cut, np.minimum(columns.layer[block], _LAYERS) + 1)
            self._keep_gaps(cut, places)
            reached = int(cut.end_ns[-1])
            if reached > self._reached:
                self._ended = int(places[np.searchsorted(cut.end_ns, reached)])
                self._reached = reached

    def _keep_gaps(self, cut: Stretches, places: npt.NDArray[np.int64]) -> None:
        length = cut.begin_ns - cut.before_ns
        shortest = self._gaps[-1].length_ns if len(self._gaps) == GAPS else 0
        rows = np.flatnonzero(length > shortest)
        if len(rows) > GAPS:
            rows = rows[np.argpartition(length[rows], -GAPS)[-GAPS:]]
        for row in rows.tolist():
            begin = int(cut.before_ns[row])
            earlier = begin == self._reached
            before = self._ended if earlier else int(places[np.searchsorted(cut.end_ns, begin)])
            self._gaps.append(Gap(begin, int(cut.begin_ns[row]), before, int(places[row])))
        self._gaps = heapq.nlargest(GAPS, self._gaps, key=lambda gap: gap.length_ns)

    def longest_gaps(self) -> tuple[Gap, ...]:
        last = self._kernels.last
        after = last if last < len(self._columns) else -1
        rest = Gap(self._reached, self._to, self._ended, after)
        found = [*self._gaps, *([rest] if rest.length_ns else [])]
        return tuple(sorted(found, key=lambda gap: (-gap.length_ns, gap.begin_ns))[:GAPS])


class _Streams:
    """Each stream as a lane."""

    def __init__(
        self, columns: KernelColumns, kernels: Kernels, edges: npt.NDArray[np.int64]
    ) -> None:
        self._columns, self._kernels, self._edges = columns, kernels, edges
        self.bins: dict[int, LaneBins] = {}
        self._reached: dict[int, int] = {}

    def look(self) -> None:
        columns = self._columns
        first = int(self._edges[0])
        for block in in_blocks(self._kernels, len(columns.streams)):
            stream = columns.stream[block]
            places = block if isinstance(block, np.ndarray) else np.arange(block.start, block.stop)
            counts = np.bincount(stream)
            if counts.max() == len(stream):
                self._add(int(stream[0]), block, places, first)
                continue
            order = np.argsort(stream, kind="stable")
            for number, part in enumerate(np.split(places[order], np.cumsum(counts)[:-1])):
                if len(part):
                    self._add(number, part, part, first)

    def _add(
        self,
        number: int,
        rows: npt.NDArray[np.int64] | slice,
        places: npt.NDArray[np.int64],
        first: int,
    ) -> None:
        columns = self._columns
        lane = self.bins.get(number)
        if lane is None:
            lane = self.bins[number] = LaneBins(self._edges, len(COMPONENTS))
        start = np.maximum(columns.start_ns[rows], first)
        reached = self._reached.get(number, first)
        cut = Stretches.of(start, columns.end_ns[rows], reached, int(self._edges[-1]))
        lane.add(cut, columns.component[rows])
        lane.count(start, places)
        self._reached[number] = int(cut.end_ns[-1])
