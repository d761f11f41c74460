"""Joins one process of a foreign trace with its steps and modules, and writes its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import mapping_in
from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.importers.imported_layers import Layers
from spark_prof.importers.imported_steps import (
    NOTHING_TELLS,
    ImportedSteps,
    one_step,
    steps_by_graphs,
)
from spark_prof.importers.impossible_times import LeftOutRecords, without_impossible
from spark_prof.importers.modules import Modules, model_of, modules_of
from spark_prof.traces.bundle import TableFiles
from spark_prof.traces.demangle import demangled
from spark_prof.traces.execution import Execution
from spark_prof.traces.foreign import ForeignProcess, Window, operator_rows
from spark_prof.traces.host_timeline import FINISH, FIRST_MODULE, PHASE_MODULES, PREPARE, SAMPLE
from spark_prof.traces.scopes import NO_SCOPE

_AFTER_MODEL = ("lm_head", "sampler")
_NEVER = 1 << 62


def kernel_rows(
    window: Window, nodes: pd.DataFrame, modules: Modules, steps: ImportedSteps
) -> pd.DataFrame:
    """The window's rows of the `kernels` table, in order of their start.

    What has no launch in the trace is put into the step in which it ran: a trace without launches
    knows no better. A kernel inside a CUDA graph has the scope in which its node was created: what
    replays a graph says nothing about what its kernels work for.
    """
    gpu = window.trace.gpu
    gpu = gpu.assign(name=_readable(gpu["name"]))
    inside = window.in_graphs()
    scope = np.where(inside, _scope_of_node(nodes, gpu), window.scope)
    times = np.where(
        window.launch_ns >= 0, window.launch_ns, gpu["start_ns"].to_numpy(np.int64)
    ).astype(np.int64)
    module, step = _module(modules, scope), steps.of(times)
    phase = _outside_modules(window, modules, steps)
    outside = (module < 0) & (phase >= 0) & ~inside
    rows = gpu.assign(
        part=0,
        step=step,
        module=np.where(outside, phase, module),
        layer=modules.layer_of_scope[scope],
        in_graph=inside,
        placed_by=np.where(outside & (gpu["kind"] == "kernel").to_numpy(), "guess", ""),
    )
    if len(window.trace.operators) and gpu.empty:
        began = window.trace.operators["start_ns"].to_numpy(np.int64)
        rows = operator_rows(window.trace.operators).assign(
            step=steps.of(began), module=-1, layer=-1, in_graph=False, placed_by=""
        )
    start = rows["start_ns"].to_numpy(np.int64)
    if (np.diff(start) < 0).any():
        rows = rows.iloc[np.argsort(start, kind="stable")]
    return rows


def call_rows(window: Window, modules: Modules, steps: ImportedSteps) -> pd.DataFrame:
    """The window's rows of the `ranges` table."""
    calls = window.calls
    scope = calls["scope"].to_numpy(np.int64)
    rows = calls.drop(columns="scope").assign(
        module=_module(modules, scope),
        step=steps.of(calls["start_ns"].to_numpy(np.int64)),
    )
    return rows.sort_values("start_ns", kind="stable")


def node_rows(nodes: pd.DataFrame, modules: Modules) -> pd.DataFrame:
    """Rows of the `graph_nodes` table, in order of their number."""
    scope = nodes["scope"].to_numpy(np.int64)
    rows = nodes.drop(columns="scope").assign(
        module=_module(modules, scope), layer=modules.layer_of_scope[scope], capture=-1
    )
    return rows.sort_values("node", kind="stable").drop_duplicates("node", keep="last")


def module_rows(modules: Modules) -> pd.DataFrame:
    """Rows of the `modules` table, those of a step's phases first."""
    phases = pd.DataFrame(PHASE_MODULES, columns=["path", "component"])
    phases = phases.assign(module=np.arange(len(phases)), type="", layer=-1)
    rows = modules.frame.assign(module=modules.frame["module"] + FIRST_MODULE)
    return pd.concat([phases, rows], ignore_index=True)


def _scope_of_node(nodes: pd.DataFrame, gpu: pd.DataFrame) -> Int64s:
    """The scope in which the graph node of each kernel was created, NO_SCOPE where unknown."""
    if nodes.empty:
        return np.full(len(gpu), NO_SCOPE, np.int64)
    scopes = nodes.drop_duplicates("node", keep="last").set_index("node")["scope"]
    scope = scopes.reindex(gpu["graph_node"], fill_value=NO_SCOPE)
    return scope.to_numpy(np.int64)


def _readable(names: pd.Series) -> pd.Series:
    """The names, those that are symbols of C++ functions as people read them."""
    if not any(str(name).startswith("_Z") for name in names.cat.categories):
        return names
    readable = demangled(map(str, names.cat.categories))
    distinct, code = np.unique(np.array(readable, object), return_inverse=True)
    codes = np.append(code, -1)[names.cat.codes.to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(distinct)), index=names.index)


def _module(modules: Modules, scope: Int64s) -> Int64s:
    number = modules.of_scope[scope]
    return np.where(number >= 0, number + FIRST_MODULE, -1).astype(np.int64)


def _outside_modules(window: Window, modules: Modules, steps: ImportedSteps) -> Int64s:
    """The phase of each row of the window's `gpu` that no module launched, -1 where unknown.

    Before the model the batch is prepared, between model and logits the rows for the logits are
    gathered, after the logits tokens are sampled: the phases that a recording marks itself.
    Without calls of modules in a step nothing is known about it; without one of the logits, what
    follows the model may be either phase. Operators that vLLM hides from its compiler are no
    modules here: layers begin before their attention does.
    """
    called = window.calls
    module = modules.of_scope[called["scope"].to_numpy(np.int64)]
    components = np.append(modules.frame["component"].astype(str).to_numpy(object), "")
    operators = [*modules.frame["type"].astype(str).str.contains("::", regex=False), True]
    step = steps.of(called["start_ns"].to_numpy(np.int64))
    logits = np.isin(components[module], _AFTER_MODEL)
    inside = ~np.array(operators, bool)[module] & (step >= 0)
    called = called.assign(step=step, logits=logits)[inside]
    number, time = steps.of(window.launch_ns), window.launch_ns
    every = np.append(np.arange(len(steps)), -1)

    def of_row(values: pd.Series) -> Int64s:
        """The value of each row's step, _NEVER where it has none."""
        return values.reindex(every, fill_value=_NEVER).to_numpy(np.int64)[number]

    of_model, of_logits = (
        called[called["logits"] == kind].groupby("step") for kind in (False, True)
    )
    begin, enter = of_row(of_model["start_ns"].min()), of_row(of_logits["start_ns"].min())
    leave = of_row(of_logits["end_ns"].max())
    between = (time > begin) & (time < enter) & (enter < _NEVER)
    phase = np.select([time < begin, time > leave, between], [PREPARE, SAMPLE, FINISH], -1)
    return np.where((time >= 0) & (begin < _NEVER), phase, -1).astype(np.int64)


_OPEN_END = 1 << 62  # the end of a step whose end is not known yet, ns


class ProcessWriter:
    """Writes one process, window by window."""

    def __init__(
        self, process: ForeignProcess, rank: int, tables: TableFiles, layers: Layers, source: str
    ) -> None:
        self.process, self.rank = process, rank
        self.lost: list[str] = []
        self._tables, self._layers, self._source = tables, layers, source
        self._steps: ImportedSteps | None = None
        self._scopes = -1
        self._modules: Modules = modules_of(process.scopes)
        self._added = pd.DataFrame()
        self._first, self._last = _OPEN_END, -_OPEN_END
        self._work_span = (_OPEN_END, -_OPEN_END)
        self._left_out = LeftOutRecords()
        self._in_graphs = self._launched = False

    def add(self, window: Window, whole: bool) -> None:
        """Adds a window; `whole` if it is all that there is of the process."""
        if len(self.process.scopes) != self._scopes:
            self._scopes = len(self.process.scopes)
            self._modules = modules_of(self.process.scopes)
        amd = mapping_in(self.process.facts, "gpu").get("vendor") == "AMD"
        window = without_impossible(window, self._left_out, amd=amd)
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
        self._launched |= bool(len(window.trace.launches) or len(window.trace.operators))
        add("overhead", self.rank, window.trace.overhead)
        if len(window.trace.markers):
            began = window.trace.markers["start_ns"].to_numpy(np.int64)
            add("markers", self.rank, window.trace.markers.assign(step=steps.of(began)))
        self.lost += window.trace.lost

    def finish(self) -> None:
        """Adds what there is once per process."""
        impossible_lines = self._left_out.lines()
        if self._left_out.most:
            raise CommandError(
                f"{self._source} cannot be believed; record again ({impossible_lines[0]})"
            )
        self.lost = [*impossible_lines, *self.lost]
        if self._steps is None or self._last < self._first:
            return
        frame = self._steps.frame()
        frame["end_ns"] = np.minimum(frame["end_ns"], max(self._last, self._first))
        if not self._steps.has_source:
            frame["start_ns"], frame["end_ns"] = self._work_span
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
        model = model_of(self._modules.frame["type"].astype(str))
        facts.setdefault("model", model or self._source)
        facts.setdefault("architecture", model or "")
        # Without launches nothing tells whether each kernel had its own.
        alone = str(Execution(eager=True)) if self._launched else "unknown"
        facts.setdefault("execution", str(Execution(graphs=True)) if self._in_graphs else alone)
        if self._steps is not None:
            facts["steps_by"] = self._steps.told_by
        return {key: value for key, value in facts.items() if value not in (None, "")}

    def _find_steps(self, window: Window, whole: bool) -> ImportedSteps:
        if self._steps is None:
            steps = ImportedSteps(self._first)
            steps.add_markers(window.trace.markers)
            if not len(steps) and whole:
                steps = steps_by_graphs(window) or steps
            if not len(steps):
                steps = one_step(self._first, self._last if whole else _OPEN_END)
                steps.lost.append(NOTHING_TELLS)
            self._steps = steps
        else:
            self._steps.add_markers(window.trace.markers)
        return self._steps

    def _note_times(self, window: Window) -> None:
        trace = window.trace
        for frame in (trace.gpu, trace.launches, trace.operators):
            if len(frame):
                self._first = min(self._first, int(frame["start_ns"].min()))
                self._last = max(self._last, int(frame["end_ns"].max()))
        # What the report is about: the GPU's work, or without any the operators.
        work = trace.operators if trace.gpu.empty else trace.gpu
        if len(work):
            first, last = int(work["start_ns"].min()), int(work["end_ns"].max())
            self._work_span = min(self._work_span[0], first), max(self._work_span[1], last)
