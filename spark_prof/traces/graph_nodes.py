"""Gives every node of a captured CUDA graph what was open when it was created.

vLLM captures each graph once, while it starts. The graph that runs is an instantiated clone: its
nodes carry other numbers, and each is followed back to the node that was captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.timeline import Timeline, replay

Int64s = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]

_MODES = ("", "PIECEWISE", "FULL")
_LONGEST_CHAIN = 16
"""Clones of clones are followed this far; real ones are one or two."""


@dataclass(frozen=True)
class GraphNodes:
    """The placed nodes of one rank, in order of their number.

    Attributes:
        frame: rows of the `graph_nodes` table.
    """

    frame: pd.DataFrame

    def find(self, nodes: Int64s) -> Int64s:
        """The row of each node, -1 for a node that nobody saw created."""
        known = self.frame["node"].to_numpy(np.int64)
        if not len(known):
            return np.full(len(nodes), -1, np.int64)
        index = np.minimum(np.searchsorted(known, nodes), len(known) - 1)
        return np.where((known[index] == nodes) & (nodes != 0), index, -1).astype(np.int64)


def place_nodes(nodes: Rows, events: Rows, captures: Rows, layers: Sequence[int]) -> GraphNodes:
    """Places the nodes.

    Args:
        nodes: rows of pieces.NODE_DTYPE; a clone may be reported as a new node too.
        events: what was entered and left meanwhile, rows of pieces.EVENT_DTYPE.
        captures: rows of pieces.CAPTURE_DTYPE, in order.
        layers: decoder layer of each module, -1 for none.
    """
    timeline, _ = replay(events, layers, None)
    rows = nodes[last_of_each(nodes["node"], nodes["original"])]
    number = rows["node"].astype(np.int64)
    root = roots(number, rows["original"].astype(np.int64))
    created = rows["created_ns"].astype(np.int64)[root] if len(rows) else np.empty(0, np.int64)
    capture = _capture_of(created, captures)
    module, layer = _open_at(timeline, created, capture)
    return GraphNodes(
        pd.DataFrame(
            {
                "node": number,
                "original": number[root] if len(rows) else number,
                "graph": rows["graph"].astype(np.int64),
                "created_ns": created,
                "module": module,
                "layer": layer,
                "capture": capture,
            }
        )
    )


def capture_rows(captures: Rows) -> pd.DataFrame:
    """The `captures` table."""
    frame = pd.DataFrame(captures)
    frame["mode"] = [_MODES[mode] if 0 <= mode < len(_MODES) else "" for mode in captures["mode"]]
    return frame.rename_axis("capture").reset_index()


def last_of_each(number: Rows, original: Rows) -> Int64s:
    """The row that says most about each node, in order of the nodes' numbers."""
    # A clone's row says more than the row of the same node as a new one: it comes last, and stays.
    order: Int64s = np.lexsort((original != 0, number))
    if len(order):
        ascending = number[order]
        order = order[np.append(ascending[1:] != ascending[:-1], True)]
    return order


def roots(number: Int64s, original: Int64s) -> Int64s:
    """The row of the node that each row is in the end a clone of; of itself where it is none.

    Args:
        number: the nodes, ascending.
        original: the node that each is a clone of, 0 for none. Cycles are followed for a while.
    """
    index = np.arange(len(number))
    if not len(number):
        return index
    parent = np.minimum(np.searchsorted(number, original), len(number) - 1)
    parent = np.where((original != 0) & (number[parent] == original), parent, index)
    for _ in range(_LONGEST_CHAIN):
        further = parent[parent]
        if (further == parent).all():
            break
        parent = further
    return parent


def _capture_of(created: Int64s, captures: Rows) -> Int64s:
    if not len(captures):
        return np.full(len(created), -1, np.int64)
    index = np.searchsorted(captures["start_ns"], created, side="right") - 1
    inside = (index >= 0) & (created <= captures["end_ns"][np.maximum(index, 0)])
    return np.where(inside, index, -1).astype(np.int64)


def _open_at(timeline: Timeline, created: Int64s, capture: Int64s) -> tuple[Int64s, Int64s]:
    module, layer = timeline.at(created)
    return np.where(capture >= 0, module, -1), np.where(capture >= 0, layer, -1)
