"""Which kernels of steps are nodes of CUDA graphs that wait for the one before them.

The bound counts the price of those alone. A node that runs beside work of another stream hides its
price behind that, and so may the one behind it; the first kernel of a step waits for no other one.
Recordings do not tell how a node depends on the one before it: it has the lower price of both. One
that was seen to start early may read its bytes while it waits: it costs what is more, bytes or
price. Kernels that the host launches cost more, which is no term of this bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import copies_in
from spark_prof.analyzers.roofline.roofline_rows import Place
from spark_prof.arrays import Flags
from spark_prof.rules.node_prices import NodePrice


class NodeShares(NamedTuple):
    """Which shares of a kernel's calls are such nodes."""

    waiting: float = 0.0  # that were never seen to start before the one before them had ended
    early: float = 0.0

    @property
    def counted(self) -> float:
        """Both together."""
        return self.waiting + self.early

    def us(self, price: NodePrice, floor_us: float | None) -> float:
        """What a mean call costs at least beside its floor."""
        beyond = max(price.least_us - (floor_us or 0.0), 0.0)
        return self.waiting * price.least_us + self.early * beyond


def node_shares(placed: pd.DataFrame, steps: pd.Index) -> dict[Place, NodeShares]:
    """The shares of each kernel in those steps.

    Args:
        placed: what `facts.placed` has: in order of own start, with stream and graph_node.
        steps: their numbers.
    """
    if "graph_node" not in placed or not len(placed):
        return {}
    counted = _waits_for_one(placed)
    early = placed["ahead_ns"].to_numpy() > 0 if "ahead_ns" in placed else np.zeros_like(counted)
    chosen = placed["step"].isin(steps).to_numpy() & ~copies_in(placed)
    chosen &= (placed["part"] == 0).to_numpy()
    rows = placed.loc[chosen, ["component", "role", "name"]]
    rows = rows.assign(waiting=(counted & ~early)[chosen], early=(counted & early)[chosen])
    shares = rows.groupby(["component", "role", "name"], observed=True).mean()
    return {
        Place(*map(str, place)): NodeShares(waiting, started)
        for *place, waiting, started in shares.reset_index().itertuples(index=False, name=None)
    }


def _waits_for_one(placed: pd.DataFrame) -> Flags:
    """Nodes that run by themselves behind what ran by itself in the same step."""
    start, end = placed["start_ns"].to_numpy(), placed["end_ns"].to_numpy()
    latest = np.maximum.accumulate(end)
    beside = np.zeros(len(start), bool)
    beside[1:] = start[1:] < latest[:-1]
    beside[:-1] |= start[1:] < latest[:-1]
    step = placed["step"].to_numpy()
    behind = np.zeros(len(start), bool)
    behind[1:] = (step[1:] == step[:-1]) & ~beside[:-1]
    nodes: Flags = (placed["graph_node"].to_numpy() != 0) & behind & ~beside
    return nodes
