"""What every reader of somebody else's trace gives: processes, and windows of what they did.

A window holds a stretch of the trace; a format that can be read in stretches gives many, so that
memory does not grow with the trace. What a kernel was launched for is its *scope*: the innermost
range open then that names a module of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.trace import Trace
from spark_prof.traces.scopes import Scopes
from spark_prof.traces.tables import empty_frame

Int64s = npt.NDArray[np.int64]

NamesModule = Callable[[str], bool]
"""Says whether a range's name names a module; only such ranges become scopes."""


@dataclass(frozen=True)
class Process:
    """One process of a foreign trace: a rank.

    Attributes:
        rank: its rank where the trace or the file's name tells it, else None.
        facts: what is known, with the keys of Meta.facts: gpu {name, compute_capability, vendor},
            torch, cuda, pid, host, world_size...
        scopes: what its launches were made for; filled while the windows are read.
        nodes: its CUDA graph nodes: `node`, `original`, `graph`, `created_ns`, and `scope`.
        metrics: what Nsight Compute measured of its kernels, the `metrics` table.
    """

    rank: int | None
    facts: dict[str, Any]
    scopes: Scopes = field(default_factory=Scopes)
    nodes: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(
            columns=["node", "original", "graph", "created_ns", "scope"], dtype=np.int64
        )
    )
    metrics: pd.DataFrame = field(default_factory=lambda: empty_frame("metrics"))


@dataclass(frozen=True)
class Window:
    """A stretch of one process.

    Attributes:
        process: index into Foreign.processes.
        trace: what ran and what launched it. Names of `gpu`, `launches` and `markers` are
            categories. Every range is a marker, those that name modules too.
        launch_ns: when each row of `trace.gpu` was launched, -1 where nothing tells.
        thread: the thread that launched it, -1 where nothing tells.
        scope: its scope, NO_SCOPE for none; of a kernel in a graph the scope of the graph's launch.
        calls: `scope`, `start_ns`, `end_ns`, `thread` of each call of a range that names a module.
    """

    process: int
    trace: Trace
    launch_ns: Int64s
    thread: Int64s
    scope: Int64s
    calls: pd.DataFrame

    def in_graphs(self) -> npt.NDArray[np.bool_]:
        """Which rows of `trace.gpu` ran inside a CUDA graph."""
        launches = self.trace.launches
        names = launches["name"].cat.categories
        replays = np.array(["GraphLaunch" in str(name) for name in names] + [False])
        graphs = launches["correlation"].to_numpy()[replays[launches["name"].cat.codes.to_numpy()]]
        correlation = self.trace.gpu["correlation"].to_numpy()
        inside = np.isin(correlation, graphs[graphs >= 0])
        inside |= self.trace.gpu["graph_node"].to_numpy() != 0
        return inside


@dataclass(frozen=True)
class Foreign:
    """A foreign trace that is being read.

    Attributes:
        format: kineto, nsys, proton, cupti...
        processes: whose trace it is.
        windows: the stretches, in order of time within a process; they can be read once.
        lost: what the trace lacks, one line each; complete when the windows have been read.
        refusal: why nothing of it can be analyzed, empty where something can.
    """

    format: str
    processes: list[Process]
    windows: Iterator[Window]
    lost: list[str] = field(default_factory=list)
    refusal: str = ""
