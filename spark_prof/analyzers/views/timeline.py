"""What is drawn of a range of time, from ten million kernels down to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.analyzers.views.lanes import Kernels, kernels_between
from spark_prof.analyzers.views.lanes_scan import Gap, Scan, scan
from spark_prof.analyzers.views.marks import Marks, bin_marks, layer_marks
from spark_prof.analyzers.views.marks_exact import (
    Drawn,
    component_runs,
    kernel_marks,
    layer_runs,
    step_marks,
)

MOST_MARKS = 5000
"""A browser draws so many within a second."""

MOST_KERNELS = 2000
"""With more kernels than this in a range, bins are drawn."""

_MOST_A_BIN = 3
"""Fewer kernels are drawn as bins too where they are so dense that none of them can be seen."""

_MOST_RUNS = 1000
_ALWAYS_SHOWN = 12
"""Streams up to this number have a lane also where they have no kernel in the range."""


@dataclass(frozen=True)
class Lane:
    """One row of the time line.

    Attributes:
        kind: what its marks are: each of steps, layers and components is of the whole device.
        title: of a stream, its device and number.
        rank: whose it is.
    """

    kind: Literal["steps", "layers", "components", "stream", "rank"]
    title: str
    rank: int


@dataclass(frozen=True)
class RankColumns:
    """Another rank, which gets a lane of its own.

    Attributes:
        rank: its number.
        columns: its kernels.
        ahead_ns: by how much its clock is ahead of the shown rank's.
    """

    rank: int
    columns: KernelColumns
    ahead_ns: int = 0


@dataclass(frozen=True)
class Timeline:
    """A range as it is drawn. Times are on the clock of the shown rank.

    Attributes:
        from_ns: the range.
        to_ns: its end.
        lanes: from above.
        marks: of all lanes.
        busy_ns: how long anything of the shown rank ran.
        components: ns by place in `vocabulary.COMPONENTS`; they add up to busy_ns.
        kernels: that ran in the range, copies included.
        gaps: the longest times in which nothing ran, the longest first.
        exact: whether each kernel of the shown rank is a mark of its own.
    """

    from_ns: int
    to_ns: int
    lanes: tuple[Lane, ...]
    marks: Marks
    busy_ns: int
    components: tuple[int, ...]
    kernels: int
    gaps: tuple[Gap, ...]
    exact: bool


def timeline(
    columns: KernelColumns,
    steps: pd.DataFrame,
    from_ns: int,
    to_ns: int,
    bins: int,
    *,
    rank: int = 0,
    others: Sequence[RankColumns] = (),
) -> Timeline:
    """Draws a range.

    Args:
        columns: kernels of the shown rank.
        steps: its steps: step, phase, begin_ns and finish_ns, in order.
        from_ns: the range, on the clock of the columns.
        to_ns: its end, after from_ns.
        bins: the width in bins; they become wider where that would be more than MOST_MARKS.
        rank: the shown one.
        others: further ranks.
    """
    most = MOST_KERNELS // (1 + len(others))
    own = _look(columns, from_ns, to_ns, bins, most)
    rest = [
        (other, _look(other.columns, from_ns + other.ahead_ns, to_ns + other.ahead_ns, bins, most))
        for other in others
    ]
    streams = _streams(columns, own)
    lanes = [Lane(kind, kind, rank) for kind in ("steps", "layers", "components")]
    lanes += [Lane("stream", columns.streams[number], rank) for number in streams]
    lanes += [Lane("rank", f"rank {other.rank}", other.rank) for other in others]
    while True:
        parts = [step_marks(0, steps, own.scan.device.edges), *own.marks(streams)]
        for place, (other, looked) in enumerate(rest, 3 + len(streams)):
            drawn = looked.device(place)
            shifted = replace(
                drawn,
                begin_ns=drawn.begin_ns - other.ahead_ns,
                end_ns=drawn.end_ns - other.ahead_ns,
            )
            parts.append(shifted)
        marks = Marks.joined(parts)
        if len(marks) <= MOST_MARKS or len(own.scan.device.kernels) < 2:
            break
        own = own.halved()
        rest = [(other, looked.halved()) for other, looked in rest]
    totals = own.scan.device.busy_ns.sum(axis=0)
    return Timeline(
        from_ns,
        to_ns,
        tuple(lanes),
        marks,
        int(totals.sum()),
        tuple(totals.tolist()),
        len(own.kernels),
        own.scan.gaps,
        own.exact,
    )


@dataclass(frozen=True)
class _Looked:
    """The range of one rank."""

    columns: KernelColumns
    kernels: Kernels
    scan: Scan
    exact: bool

    def _drawn(self, stream: int | None = None) -> Drawn:
        places, edges = self.kernels.places(), self.scan.device.edges
        if stream is not None:
            places = places[self.columns.stream[places] == stream]
        return Drawn.of(self.columns, places, int(edges[0]), int(edges[-1]))

    def device(self, lane: int) -> Marks:
        """All of its streams as one lane."""
        if self.exact:
            return kernel_marks(lane, self._drawn())
        return bin_marks(lane, self.scan.device, self.columns.component)

    def marks(self, streams: Sequence[int]) -> Iterator[Marks]:
        """Its layers, its components and its streams."""
        columns, found = self.columns, self.scan
        layers = layer_marks(1, found.layers)
        components = bin_marks(2, found.device, columns.component)
        if self.exact:
            drawn = self._drawn()
            exact = layer_runs(1, drawn)
            layers = exact if len(exact) <= _MOST_RUNS else layers
            exact = component_runs(2, drawn)
            components = exact if len(exact) <= _MOST_RUNS else components
        yield layers
        yield components
        for lane, stream in enumerate(streams, 3):
            if self.exact:
                yield kernel_marks(lane, self._drawn(stream))
            elif stream in found.streams:
                yield bin_marks(lane, found.streams[stream], columns.component)

    def halved(self) -> _Looked:
        """With half as many bins."""
        found = self.scan
        streams = {number: bins.halved() for number, bins in found.streams.items()}
        fewer = replace(
            found, device=found.device.halved(), layers=found.layers.halved(), streams=streams
        )
        return replace(self, scan=fewer)


def _look(columns: KernelColumns, from_ns: int, to_ns: int, bins: int, most: int) -> _Looked:
    kernels = kernels_between(columns, from_ns, to_ns)
    found = scan(columns, kernels, from_ns, to_ns, bins)
    used = int(np.count_nonzero(found.device.kernels))
    return _Looked(columns, kernels, found, len(kernels) <= min(most, _MOST_A_BIN * used))


def _streams(columns: KernelColumns, looked: _Looked) -> list[int]:
    """The streams that get a lane."""
    if len(columns.streams) <= _ALWAYS_SHOWN:
        return list(range(len(columns.streams)))
    return list(looked.scan.streams)
