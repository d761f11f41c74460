"""Makes a bundle out of foreign traces.

Windows are written as they are read, so that memory does not grow with a trace that comes in many.
A trace that is one window can be looked at as a whole: where its steps or layers have no ranges,
they are looked for in what repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.errors import CommandError, one_line
from spark_prof.importers.graph_steps import steps_by_graphs
from spark_prof.importers.joining import (
    call_rows,
    kernel_rows,
    marker_rows,
    module_rows,
    node_rows,
)
from spark_prof.importers.layers import Layers
from spark_prof.importers.modules import Modules, modules_of
from spark_prof.importers.steps import Steps, one_step
from spark_prof.importers.writing import BehindTables
from spark_prof.traces.benchmarks.frames import client_frames
from spark_prof.traces.benchmarks.result import BenchmarkResult
from spark_prof.traces.bundle import IMPORTED, SCHEMA, Bundle, Meta
from spark_prof.traces.foreign import Foreign, Process, Window
from spark_prof.traces.readers.ncu_csv import FORMAT as NCU
from spark_prof.traces.staging import staged
from spark_prof.traces.table_files import TableFiles

__all__ = ["Import", "write_import"]

_ALONE = "ncu"
"""The format whose kernels were measured one by one, outside the run."""

_OPEN_END = 1 << 62
"""The end of a step whose end is not known yet, ns."""


@dataclass(frozen=True)
class Import:
    """What is to become one bundle.

    Attributes:
        source: what the user named, for the report.
        traces: the traces, read one after another.
        results: results of load generators.
        layers: what tells the layers where no range does.
        lost: what is missing before anything is read.
    """

    source: str
    traces: Iterable[Foreign]
    results: Sequence[BenchmarkResult] = ()
    layers: Layers = field(default_factory=Layers)
    lost: tuple[str, ...] = ()


def write_import(wanted: Import, out: Path) -> Bundle:
    """Reads the traces and writes the bundle, whole or not at all.

    Raises:
        CommandError: a trace is damaged or holds nothing, two are of one rank, or the bundle cannot
            be written.
    """
    with staged(out) as staging:
        with TableFiles(staging) as tables, BehindTables(tables) as behind:
            writer = _Writer(wanted, behind)
            for foreign in wanted.traces:
                writer.add(foreign)
            writer.finish()
        writer.meta(tables.rows).write(staging)
    return Bundle(out)


class _Writer:
    """Writes trace after trace into the tables of one bundle."""

    def __init__(self, wanted: Import, tables: BehindTables) -> None:
        self._wanted, self._tables = wanted, tables
        self._facts: dict[str, dict[str, Any]] = {}
        self._formats: list[str] = []
        self._lost = list(wanted.lost)
        self._lost_by_rank: dict[str, list[int]] = {}
        self._summed = False
        self._measured = 0

    def add(self, foreign: Foreign) -> None:
        """Adds the processes of one trace; beside others Nsight Compute's only as counters."""
        if foreign.format == NCU and any(name != NCU for name in self._formats):
            self._add_counters(foreign)
            return
        ranks = self._ranks(foreign.processes)
        writers = [
            _ProcessWriter(process, rank, self._tables, self._wanted)
            for process, rank in zip(foreign.processes, ranks, strict=True)
        ]
        windows = iter(foreign.windows)
        first = list(islice(windows, len(writers) + 1))
        whole = len(first) <= len(writers)
        for window in chain(first, windows):
            writers[window.process].add(window, whole)
        for writer in writers:
            writer.finish()
            self._facts[f"rank{writer.rank}"] = writer.facts()
            for line in dict.fromkeys(writer.lost):
                self._lost_by_rank.setdefault(line, []).append(writer.rank)
            self._summed |= bool(writer.process.facts.get("summed"))
        self._formats.append(foreign.format)
        self._lost += foreign.lost

    def _add_counters(self, foreign: Foreign) -> None:
        """Adds what was measured of kernels to the first rank: a name is the same on all."""
        rank = int(next(iter(self._facts)).removeprefix("rank"))
        for process in foreign.processes:
            metrics = process.metrics
            launch = metrics["launch"] + self._measured
            self._tables.add("metrics", rank, metrics.assign(launch=launch))
            self._measured += int(metrics["launch"].max()) + 1 if len(metrics) else 0
        self._formats.append(foreign.format)

    def finish(self) -> None:
        """Adds what belongs to no trace."""
        if not any(name.startswith("steps-") for name in self._tables.rows()):
            raise CommandError(f"{self._wanted.source} holds no work on a GPU or CPU")
        for result in self._wanted.results:
            for table, frame in client_frames(result).items():
                self._tables.add(table, 0, frame)

    def meta(self, rows: dict[str, int]) -> Meta:
        """What the bundle says about itself."""
        settings: dict[str, Any] = {"source": self._wanted.source, "summed": self._summed}
        return Meta(
            schema=SCHEMA,
            spark_prof=_version(),
            state="complete",
            command=(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            backend=IMPORTED + ", ".join(dict.fromkeys(self._formats)),
            settings=settings,
            facts=self._facts,
            lost=tuple(dict.fromkeys(map(one_line, [*self._all_lost(), *self._lost]))),
            tables=rows,
        )

    def _all_lost(self) -> list[str]:
        """What the processes lack, each line once, with the ranks where it is not all of them."""
        return [
            line if len(ranks) == len(self._facts) else f"{_ranks_in_words(ranks)}: {line}"
            for line, ranks in self._lost_by_rank.items()
        ]

    def _ranks(self, processes: Sequence[Process]) -> list[int]:
        """A rank for each process: its own, else the next free number."""
        taken = {int(name.removeprefix("rank")) for name in self._facts}
        ranks = []
        for process in processes:
            rank = process.rank
            if rank is None:
                rank = next(n for n in range(len(taken) + 1) if n not in taken)
            elif rank in taken:
                raise CommandError(
                    f"{self._wanted.source} holds two traces of rank {rank}; import them one by "
                    "one, or give the one that has layers as --like"
                )
            taken.add(rank)
            ranks.append(rank)
        return ranks


class _ProcessWriter:
    """Writes one process, window by window."""

    def __init__(self, process: Process, rank: int, tables: BehindTables, wanted: Import) -> None:
        self.process, self.rank = process, rank
        self._source = wanted.source
        self.lost: list[str] = []
        self._tables, self._layers = tables, wanted.layers
        self._steps: Steps | None = None
        self._scopes = -1
        self._modules: Modules = modules_of(process.scopes)
        self._added = pd.DataFrame()
        self._first, self._last = _OPEN_END, -_OPEN_END
        self._graphs, self._kernels = 0, 0

    def add(self, window: Window, whole: bool) -> None:
        """Adds a window; `whole` if it is all that there is of the process."""
        if len(self.process.scopes) != self._scopes:
            self._scopes = len(self.process.scopes)
            self._modules = modules_of(self.process.scopes)
        self._note_times(window)
        steps = self._find_steps(window, whole)
        kernels = kernel_rows(window, self.process.nodes, self._modules, steps)
        in_graphs = window.in_graphs()
        self._graphs += int(in_graphs.sum())
        self._kernels += len(window.trace.gpu)
        if whole:
            placed = self._layers.place(kernels, self.rank, steps, self._modules)
            kernels, self._added = placed.kernels, placed.modules
            self.lost += placed.lost
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
        facts.setdefault("execution", "CUDA graphs" if self._graphs else "eager")
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


def _ranks_in_words(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _model(modules: Modules) -> str:
    """The class of the whole model, empty where none is named."""
    types = modules.frame["type"]
    return next((str(t) for t in types if "For" in str(t) or str(t).endswith("Model")), "")


def _version() -> str:
    with suppress(PackageNotFoundError):
        return version("spark-prof")
    return "unknown"
