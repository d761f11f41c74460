"""Joins a window of a foreign trace with its steps and modules: rows for the bundle's tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.importers.modules import Modules
from spark_prof.importers.steps import Steps
from spark_prof.traces.demangle import demangler
from spark_prof.traces.foreign import Window
from spark_prof.traces.scopes import NO_SCOPE
from spark_prof.traces.timeline import FINISH, FIRST_MODULE, PHASE_MODULES, PREPARE, SAMPLE

Int64s = npt.NDArray[np.int64]

_AFTER_MODEL = ("lm_head", "sampler")
_NEVER = 1 << 62


def kernel_rows(
    window: Window, nodes: pd.DataFrame, modules: Modules, steps: Steps
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
        rows = _operator_rows(window.trace.operators, steps)
    start = rows["start_ns"].to_numpy(np.int64)
    if (np.diff(start) < 0).any():
        rows = rows.iloc[np.argsort(start, kind="stable")]
    return rows


def call_rows(window: Window, modules: Modules, steps: Steps) -> pd.DataFrame:
    """The window's rows of the `ranges` table."""
    calls = window.calls
    scope = calls["scope"].to_numpy(np.int64)
    rows = calls.drop(columns="scope").assign(
        module=_module(modules, scope),
        step=steps.of(calls["start_ns"].to_numpy(np.int64)),
    )
    return rows.sort_values("start_ns", kind="stable")


def marker_rows(window: Window, steps: Steps) -> pd.DataFrame:
    """The window's rows of the `markers` table."""
    markers = window.trace.markers
    return markers.assign(step=steps.of(markers["start_ns"].to_numpy(np.int64)))


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
    found = scopes.reindex(gpu["graph_node"], fill_value=NO_SCOPE)
    return found.to_numpy(np.int64)


def _readable(names: pd.Series) -> pd.Series:
    """The names, those that are symbols of C++ functions as people read them."""
    if not any(str(name).startswith("_Z") for name in names.cat.categories):
        return names
    demangle = demangler()
    readable = [demangle(str(name)) for name in names.cat.categories]
    distinct, code = np.unique(np.array(readable, object), return_inverse=True)
    codes = np.append(code, -1)[names.cat.codes.to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(distinct)), index=names.index)


def _module(modules: Modules, scope: Int64s) -> Int64s:
    found = modules.of_scope[scope]
    return np.where(found >= 0, found + FIRST_MODULE, -1).astype(np.int64)


def _operator_rows(operators: pd.DataFrame, steps: Steps) -> pd.DataFrame:
    """The rows of a run on the CPU, where operators stand for kernels."""
    start = operators["start_ns"].to_numpy(np.int64)
    return operators.rename(columns={"thread": "stream"}).assign(
        kind="op", device=-1, correlation=-1, graph_node=0, grid="", block="", registers=0,
        shared_bytes=0, bytes=0, cubin="", step=steps.of(start), module=-1, layer=-1,
        in_graph=False, placed_by="",
    )  # fmt: skip


def _outside_modules(window: Window, modules: Modules, steps: Steps) -> Int64s:
    """The phase of each row of the window's `gpu` that no module launched, -1 where unknown.

    Before the model the batch is prepared, between model and logits the rows for the logits are
    gathered, after the logits tokens are sampled: the phases that a recording marks itself.
    Without calls of modules in a step nothing is known about it; without one of the logits, what
    follows the model may be either phase.
    """
    called = window.calls
    module = modules.of_scope[called["scope"].to_numpy(np.int64)]
    components = np.append(modules.frame["component"].astype(str).to_numpy(object), "")
    step = steps.of(called["start_ns"].to_numpy(np.int64))
    logits = np.isin(components[module], _AFTER_MODEL)
    called = called.assign(step=step, logits=logits)[(module >= 0) & (step >= 0)]
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
