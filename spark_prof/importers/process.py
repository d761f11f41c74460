"""Writes one process of a foreign trace into the tables of a bundle."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.importers.joining import (
    call_rows,
    kernel_rows,
    marker_rows,
    module_rows,
    node_rows,
)
from spark_prof.importers.layers import Layers
from spark_prof.importers.modules import Modules, modules_of
from spark_prof.importers.steps import Steps, one_step, steps_by_graphs
from spark_prof.traces.foreign import Process, Window
from spark_prof.traces.table_files import TableFiles

_OPEN_END = 1 << 62
"""The end of a step whose end is not known yet, ns."""

_MOST_WAITING = 8
"""So many frames wait at most: reading is held up before memory grows."""


class ProcessWriter:
    """Writes one process, window by window.

    Args:
        process: the process.
        rank: its rank in the bundle.
        tables: the bundle's tables.
        layers: what tells the layers where no range does.
        source: what the model is called where nothing names it.

    Attributes:
        lost: what the process lacks, one line each.
    """

    def __init__(
        self, process: Process, rank: int, tables: BehindTables, layers: Layers, source: str
    ) -> None:
        self.process, self.rank = process, rank
        self.lost: list[str] = []
        self._tables, self._layers, self._source = tables, layers, source
        self._steps: Steps | None = None
        self._scopes = -1
        self._modules: Modules = modules_of(process.scopes)
        self._added = pd.DataFrame()
        self._first, self._last = _OPEN_END, -_OPEN_END
        self._in_graphs = False

    def add(self, window: Window, whole: bool) -> None:
        """Adds a window; `whole` if it is all that there is of the process."""
        if len(self.process.scopes) != self._scopes:
            self._scopes = len(self.process.scopes)
            self._modules = modules_of(self.process.scopes)
        self._note_times(window)
        steps = self._find_steps(window, whole)
        kernels = kernel_rows(window, self.process.nodes, self._modules, steps)
        self._in_graphs |= bool(kernels["in_graph"].any())
        if whole:
            training = bool(self.process.facts.get("training"))
            placed = self._layers.place(kernels, self.rank, steps, self._modules, training)
            kernels, self._added = placed.kernels, placed.modules
            self.lost += placed.lost
        elif self._layers:
            self.lost.append("it is too long to be laid beside another trace: nothing was aligned")
        add = self._tables.add
        add("kernels", self.rank, kernels)
        add("ranges", self.rank, call_rows(window, self._modules, steps))
        add("host", self.rank, window.trace.launches)
        add("overhead", self.rank, window.trace.overhead)
        if len(window.trace.markers):
            add("markers", self.rank, marker_rows(window, steps))
        self.lost += window.trace.lost

    def finish(self) -> None:
        """Adds what there is once per process."""
        if self._steps is None or self._last < self._first:
            return
        frame = self._steps.frame()
        frame["end_ns"] = np.minimum(frame["end_ns"], max(self._last, self._first))
        self._tables.add("steps", self.rank, frame)
        modules = pd.concat([module_rows(self._modules), self._added], ignore_index=True)
        self._tables.add("modules", self.rank, modules)
        if len(self.process.nodes):
            nodes = node_rows(self.process.nodes, self._modules)
            self._tables.add("graph_nodes", self.rank, nodes)
        if len(self.process.metrics):
            self._tables.add("metrics", self.rank, self.process.metrics)
        self.lost += self._steps.lost

    def facts(self) -> dict[str, Any]:
        """The facts of Meta.facts, with what the import found out."""
        facts = dict(self.process.facts)
        facts.setdefault("model", _model(self._modules) or self._source)
        facts.setdefault("execution", "CUDA graphs" if self._in_graphs else "eager")
        return {key: value for key, value in facts.items() if value not in (None, "")}

    def _find_steps(self, window: Window, whole: bool) -> Steps:
        if self._steps is None:
            steps = Steps()
            steps.add_markers(window.trace.markers)
            if not len(steps) and whole:
                steps = steps_by_graphs(window) or steps
            if not len(steps):
                steps = one_step(self._first, self._last if whole else _OPEN_END)
                steps.lost.append("no range names the steps: the whole trace counts as one")
            self._steps = steps
        else:
            self._steps.add_markers(window.trace.markers)
        return self._steps

    def _note_times(self, window: Window) -> None:
        for frame in (window.trace.gpu, window.trace.launches, window.trace.operators):
            if len(frame):
                self._first = min(self._first, int(frame["start_ns"].min()))
                self._last = max(self._last, int(frame["end_ns"].max()))


def _model(modules: Modules) -> str:
    """The class of the whole model, empty where none is named."""
    types = modules.frame["type"]
    return next((str(t) for t in types if "For" in str(t) or str(t).endswith("Model")), "")


class BehindTables:
    """Table files to which a thread of their own adds the frames, in the order in which they came.

    A context, inside that of the files; at its end everything is written.

    Args:
        tables: the files.
    """

    def __init__(self, tables: TableFiles) -> None:
        self._tables = tables
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> BehindTables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._wait(0)

    def add(self, table: str, rank: int, frame: pd.DataFrame) -> None:
        """Appends a frame, which must not change any more; see `TableFiles.add`.

        Raises:
            OSError: one of the frames before it could not be written.
        """
        self._wait(_MOST_WAITING)
        self._waiting.append(self._thread.submit(self._tables.add, table, rank, frame))

    def rows(self) -> dict[str, int]:
        """How many rows each file has by now."""
        self._wait(0)
        return self._tables.rows

    def _wait(self, most: int) -> None:
        while len(self._waiting) > most:
            self._waiting.popleft().result()
