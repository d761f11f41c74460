"""The marks of a range that is short enough to draw each kernel, and those of its steps."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.analyzers.views.lanes import Stretches
from spark_prof.analyzers.views.marks import Marks, runs, sums
from spark_prof.vocabulary import PHASES

Int64s = npt.NDArray[np.int64]

_VISIBLE = 400
"""A gap of at least one of so many parts of the range opens a new run of a component."""


@dataclass(frozen=True)
class Drawn:
    """Kernels of one lane in a range, cut so that none overlaps.

    Attributes:
        columns: of their rank.
        places: of the kernels, in order of start.
        cut: what of each counts.
        range_ns: how long the range is.
    """

    columns: KernelColumns
    places: Int64s
    cut: Stretches
    range_ns: int

    @classmethod
    def of(cls, columns: KernelColumns, places: Int64s, from_ns: int, to_ns: int) -> Drawn:
        """Cuts kernels of a range."""
        start = np.maximum(columns.start_ns[places], from_ns)
        cut = Stretches.of(start, columns.end_ns[places], from_ns, to_ns)
        return cls(columns, places, cut, to_ns - from_ns)

    def taken(self, rows: npt.NDArray[np.bool_]) -> Drawn:
        """Some of them."""
        cut = Stretches(*(getattr(self.cut, field.name)[rows] for field in fields(Stretches)))
        return replace(self, places=self.places[rows], cut=cut)


def kernel_marks(lane: int, drawn: Drawn) -> Marks:
    """A mark for each kernel."""
    columns, places = drawn.columns, drawn.places
    return Marks.of(
        lane,
        columns.start_ns[places],
        columns.end_ns[places],
        drawn.cut.end_ns - drawn.cut.begin_ns,
        component=columns.component[places],
        first=columns.layer[places],
        last=columns.layer[places],
        kernels=1,
        kernel=places,
    )


def component_runs(lane: int, drawn: Drawn) -> Marks:
    """A mark for each run of kernels of one component without a visible gap."""
    # What ran only while something else did has no time of its own on the device.
    drawn = drawn.taken(drawn.cut.end_ns > drawn.cut.begin_ns)
    component = drawn.columns.component[drawn.places]
    gaps = drawn.cut.begin_ns - drawn.cut.before_ns
    opens = runs(np.cumsum(gaps >= drawn.range_ns / _VISIBLE), component)
    return _joined(lane, drawn, opens, component=component[opens])


def layer_runs(lane: int, drawn: Drawn) -> Marks:
    """A mark for each layer of each step, from its first kernel to its last one."""
    layer = drawn.columns.layer[drawn.places]
    drawn = drawn.taken((drawn.cut.end_ns > drawn.cut.begin_ns) & (layer >= 0))
    layer = drawn.columns.layer[drawn.places]
    opens = runs(drawn.columns.step[drawn.places], layer)
    return _joined(lane, drawn, opens, first=layer[opens], last=layer[opens])


def _joined(lane: int, drawn: Drawn, opens: Int64s, **named: npt.NDArray[Any]) -> Marks:
    begin, end = drawn.cut.begin_ns, drawn.cut.end_ns
    behind = np.append(opens, len(begin))[1:]
    return Marks.of(
        lane,
        begin[opens],
        end[behind - 1],
        sums(end - begin, opens),
        kernels=behind - opens,
        **named,
    )


def step_marks(lane: int, steps: pd.DataFrame, edges: Int64s) -> Marks:
    """A mark for each step; where there are more than bins, for all that begin in one bin.

    Args:
        lane: place of the lane.
        steps: step, phase, begin_ns and finish_ns, in order.
        edges: of the bins.
    """
    from_ns, to_ns = int(edges[0]), int(edges[-1])
    begin, finish = steps["begin_ns"].to_numpy(np.int64), steps["finish_ns"].to_numpy(np.int64)
    rows = np.flatnonzero((begin < to_ns) & (finish > from_ns))
    if not len(rows):
        return Marks.of(lane, *[np.zeros(0, np.int64)] * 3)
    begin, finish = begin[rows], finish[rows]
    number = steps["step"].to_numpy()[rows]
    phase = pd.Index(PHASES).get_indexer(pd.Index(steps["phase"].astype(str).to_numpy()[rows]))
    opens = np.arange(len(rows))
    if len(rows) >= len(edges):
        opens = runs(np.searchsorted(edges, begin, side="right"))
    last = np.append(opens, len(rows))[1:] - 1
    alike = np.minimum.reduceat(phase, opens) == np.maximum.reduceat(phase, opens)
    return Marks.of(
        lane,
        begin[opens],
        np.maximum.reduceat(finish, opens),
        np.add.reduceat(np.minimum(finish, to_ns) - np.maximum(begin, from_ns), opens),
        first=number[opens],
        last=number[last],
        phase=np.where(alike, phase[opens], -1),
    )
