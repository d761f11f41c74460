"""The order in which a rank's kernels were launched, which is the order of the model's code.

On the device, kernels of several streams interleave. The launches of a thread do not; and a CUDA
graph, launched as one, was captured in order: its original nodes count up as they were created.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.bundle import Bundle

__all__ = ["launch_order", "nodes_of"]

Int64s = npt.NDArray[np.int64]


def launch_order(bundle: Bundle, rank: int, rows: pd.DataFrame) -> Int64s:
    """The positions of the rows in launch order, step by step.

    Args:
        bundle: the bundle.
        rank: the rank.
        rows: its kernels in order of start, with `start_ns`, `step`, `correlation`, `graph_node`.
    """
    start = rows["start_ns"].to_numpy(np.int64)
    host = bundle.frame("host", rank, ["correlation", "start_ns"])
    host = host.drop_duplicates("correlation").sort_values("correlation")
    launched = _look_up(host, rows["correlation"].to_numpy(np.int64), "start_ns", start)
    inside = nodes_of(bundle, rank, rows["graph_node"].to_numpy(np.int64))
    order: Int64s = np.lexsort((start, inside, launched, rows["step"].to_numpy(np.int64)))
    return order


def nodes_of(bundle: Bundle, rank: int, nodes: Int64s) -> Int64s:
    """The captured node of each node, 0 for one whose creation nobody saw."""
    known = bundle.frame("graph_nodes", rank, ["node", "original"])
    return _look_up(known.sort_values("node"), nodes, "original", np.zeros(len(nodes), np.int64))


def _look_up(table: pd.DataFrame, keys: Int64s, column: str, otherwise: Int64s) -> Int64s:
    """The column where the table's first column, sorted, is the key."""
    known = table.iloc[:, 0].to_numpy(np.int64)
    if not len(known):
        return otherwise
    index = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    found = table[column].to_numpy(np.int64)[index]
    return np.where(known[index] == keys, found, otherwise).astype(np.int64)
