"""Which kernels of steps are nodes of CUDA graphs that wait for the one before them.

The bound counts the price of those alone. A node that runs beside work of another stream hides its
price behind that, and so may the one behind it; the first kernel of a step waits for no other one.
Recordings do not tell how a node depends on the one before it: it has the lower price of both. One
that was seen to start early may read its bytes while it waits: it costs what is more, bytes or
price. Kernels that the host launches cost more, which is no term of this bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import (
    BLOCK,
    Integers,
    combined,
    copies_in,
    of_blocks,
    positions,
    sums_of_blocks,
)
from spark_prof.analyzers.roofline.roofline_rows import Place
from spark_prof.arrays import Flags, Int64s
from spark_prof.rules.node_prices import NodePrice


class NodeShares(NamedTuple):
    """The shares of a kernel's calls that are nodes of a CUDA graph."""

    waiting: float = 0.0  # that were never seen to start before the one before them had ended
    early: float = 0.0

    @property
    def counted(self) -> float:
        """The share of all such nodes."""
        return self.waiting + self.early

    def us(self, price: NodePrice, floor_us: float | None) -> float:
        """What the nodes cost a mean call at least, beyond its lower bound."""
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
    code, first = combined(*(placed[key] for key in _PLACE))
    start, end, step = (placed[name].to_numpy() for name in ("start_ns", "end_ns", "step"))
    node, part = placed["graph_node"].to_numpy(), placed["part"].to_numpy()
    ahead = placed["ahead_ns"].to_numpy() if "ahead_ns" in placed else None
    copies, ascending = copies_in(placed), np.sort(steps.to_numpy())
    latest = np.array(of_blocks(len(end), lambda block: end[block].max()))
    reached = np.append(_NEVER, np.maximum.accumulate(latest))

    def reached_before(row: int) -> int:
        block = row // BLOCK
        return max(int(reached[block]), int(end[block * BLOCK : row].max(initial=_NEVER)))

    def of_block(block: slice) -> list[npt.NDArray[Any]]:
        # With the row before it and the one behind it, which tell what runs beside it.
        wide = slice(max(block.start - 1, 0), block.stop + 1)
        waits = _waits_for_one(
            start[wide], end[wide], step[wide], reached_before(wide.start), node[wide]
        )[block.start - wide.start :][: block.stop - block.start]
        chosen = (positions(ascending, step[block]) >= 0) & ~copies[block] & (part[block] == 0)
        early = np.zeros(len(waits), bool) if ahead is None else ahead[block] > 0
        rows = code[block]
        return [
            np.bincount(rows[chosen & of], minlength=len(first))
            for of in (np.True_, waits & ~early, waits & early)
        ]

    calls, waiting, early = sums_of_blocks(len(code), 3, len(first), of_block)
    places = placed[list(_PLACE)].iloc[first].astype(str).itertuples(index=False, name=None)
    return {
        Place(*place): NodeShares(waited / of, started / of)
        for place, of, waited, started in zip(places, calls, waiting, early, strict=True)
        if of
    }


_PLACE = ("component", "role", "name")
_NEVER = np.iinfo(np.int64).min  # before any time


def _waits_for_one(
    start: Int64s, end: Int64s, step: Integers, reached: int, node: Integers
) -> Flags:
    """Nodes that run by themselves behind what ran by itself in the same step.

    Args:
        reached: when all rows before these had ended.
    """
    latest = np.maximum(np.maximum.accumulate(end), reached)
    beside = np.zeros(len(start), bool)
    beside[0] = start[0] < reached
    beside[1:] = start[1:] < latest[:-1]
    beside[:-1] |= beside[1:]
    behind = np.zeros(len(start), bool)
    behind[1:] = (step[1:] == step[:-1]) & ~beside[:-1]
    nodes: Flags = (node != 0) & behind & ~beside
    return nodes
