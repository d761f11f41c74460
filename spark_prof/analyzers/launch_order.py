"""The order in which a rank's kernels were launched, which is the order of the model's code.

On the device, kernels of several streams interleave. The launches of a thread do not; and a CUDA
graph, launched as one, was captured in order: its original nodes count up as they were created.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import ascends, by_blocks, positions
from spark_prof.traces.bundle import Bundle

Int64s = npt.NDArray[np.int64]


def launch_order(rows: pd.DataFrame, host: pd.DataFrame, nodes: Int64s) -> Int64s | None:
    """The positions of the rows in launch order, step by step; None if they are in it.

    Args:
        rows: kernels of a rank in order of start, with `start_ns`, `step` and `correlation`.
        host: `correlation` and `start_ns` of the calls that launched them.
        nodes: what `nodes_of` says of them.
    """
    start, step = rows["start_ns"].to_numpy(), rows["step"].to_numpy()
    launched = _look_up(host[["correlation", "start_ns"]], rows["correlation"].to_numpy(), start)
    order = None if ascends(step, launched) else np.lexsort((launched, step))
    if order is not None:
        step, launched, nodes = step[order], launched[order], nodes[order]
    if not nodes.any():
        return order
    # What follows is about the kernels of one launch, which only the nodes put in order.
    launch = np.zeros(len(rows), np.int64)
    np.cumsum((np.diff(step) != 0) | (np.diff(launched) != 0), out=launch[1:])
    if not ascends(launch, nodes):
        within = np.lexsort((nodes, launch))
        order = within if order is None else order[within]
    return order


def nodes_of(bundle: Bundle, rank: int, nodes: Int64s) -> Int64s:
    """The captured node of each node, 0 for one whose creation nobody saw."""
    known = bundle.frame("graph_nodes", rank, ["node", "original"])
    return _look_up(known, nodes, np.zeros(len(nodes), np.int64))


def _look_up(table: pd.DataFrame, keys: Int64s, otherwise: Int64s) -> Int64s:
    """The table's second column where its first one is the key, the first row of equal ones."""
    known, values = (table.iloc[:, column].to_numpy(np.int64) for column in range(2))
    if not len(known):
        return otherwise
    if not (known[1:] > known[:-1]).all():
        known, first = np.unique(known, return_index=True)
        values = values[first]
    found = positions(known, keys)

    def chosen(block: slice) -> Int64s:
        place = found[block]
        return np.where(place >= 0, values[place], otherwise[block])

    return by_blocks(len(keys), np.int64, chosen)
