"""Which CUDA graphs the recorded steps ran, told apart by what they are for.

A step may launch several: the model's graph, which a breakable or a piecewise one is in pieces, its
drafter's, the builds of attention metadata. They are one step all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import Integers, positions
from spark_prof.arrays import Flags
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import GRAPH_KINDS

BREAKABLE = "BREAKABLE"


@dataclass(frozen=True)
class GraphUse:
    """CUDA graphs of one kind and mode that ran."""

    kind: str  # what they are for, such as model or drafter; empty where nothing tells
    mode: str  # FULL, PIECEWISE or BREAKABLE
    steps: int  # that ran any
    pieces: int  # that the one with the most was captured in; 1 for a full graph
    launches: float  # of graphs a step, the median of those steps; of pieces each counts
    eager_breaks: float | None = None  # between pieces a step, the median; of breakable ones only


def graph_use(bundle: Bundle, rank: int) -> tuple[GraphUse, ...]:
    """The graphs that steps of the rank ran, the model's first; none where captures were not seen.

    Of 10 decode steps that replay a full graph and 2 mixed ones that replay 37 pieces: two rows,
    with 1 and with 37 launches a step and 36 eager breaks.
    """
    captures = bundle.frame("captures", rank)
    if captures.empty:
        return ()
    rows = bundle.frame("kernels", rank, ["step", "correlation", "graph_node"])
    node = rows["graph_node"].to_numpy(np.int64)
    inside = (node != 0) & (rows["step"].to_numpy() >= 0)
    rows = rows[inside].assign(at=_captured(bundle, rank, captures, node[inside]))
    rows = rows.loc[rows["at"] >= 0, ["step", "correlation", "at"]].drop_duplicates()
    of_call = _calls(captures)
    pieces = np.bincount(of_call)
    at = rows["at"].to_numpy()
    rows = rows.assign(
        call=of_call[at],
        kind=captures["kind"].astype(str).to_numpy()[at],
        mode=captures["mode"].astype(str).to_numpy()[at],
    )
    graphs = []
    for (kind, mode), replays in rows.groupby(["kind", "mode"]):
        launches = replays.groupby("step").size()
        call_replays = (
            replays.groupby(["step", "call", "at"]).size().groupby(["step", "call"]).max()
        )
        of = pieces[call_replays.index.get_level_values("call")]
        if mode == BREAKABLE:  # a piece without a kernel is launched, too
            launches = (call_replays * of).groupby("step").sum()
        breaks = float((call_replays * (of - 1)).groupby("step").sum().median())
        graphs.append(
            GraphUse(
                kind=str(kind),
                mode=str(mode),
                steps=len(launches),
                pieces=int(of.max()),
                launches=float(launches.median()),
                eager_breaks=breaks if mode == BREAKABLE else None,
            )
        )
    return tuple(
        sorted(graphs, key=lambda row: (GRAPH_KINDS.index(row.kind), -row.steps, row.mode))
    )


def in_graphs_of(bundle: Bundle, rank: int, kind: str, nodes: Integers) -> Flags:
    """Which of these nodes are of a graph of that kind, 0 being no node."""
    captures = bundle.frame("captures", rank)
    of_kind = (captures["kind"].astype(str) == kind).to_numpy()
    if not of_kind.any():
        return np.zeros(len(nodes), bool)
    at = _captured(bundle, rank, captures, nodes)
    flags: Flags = (at >= 0) & of_kind[at]
    return flags


def _captured(bundle: Bundle, rank: int, captures: pd.DataFrame, nodes: Integers) -> Integers:
    """The row in `captures` of the graph of each node, -1 for none."""
    graph_nodes = bundle.frame("graph_nodes", rank, ["node", "capture"]).sort_values("node")
    place = positions(graph_nodes["node"].to_numpy(np.int64), nodes)
    number = np.append(graph_nodes["capture"].to_numpy(np.int64), -1)[place]
    order = np.argsort(captures["capture"].to_numpy(np.int64), kind="stable")
    row = positions(captures["capture"].to_numpy(np.int64)[order], number)
    capture_rows: Integers = np.where((row >= 0) & (nodes != 0), np.append(order, -1)[row], -1)
    return capture_rows


def _calls(captures: pd.DataFrame) -> Integers:
    """A number for each capture: the same for pieces of one call."""
    group = captures["group"].to_numpy(np.int64)
    # An earlier spark-prof did not tell them: each stands for itself.
    alone = np.where(group < 0, -1 - np.arange(len(group)), group)
    return np.unique(alone, return_inverse=True)[1]
