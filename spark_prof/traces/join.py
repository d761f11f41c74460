"""Joins one recorded piece: its kernels with the steps, modules and layers that launched them.

A kernel belongs to what was open when it was *launched*, on the thread that ran the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Trace, operator_rows
from spark_prof.traces.host_timeline import (
    FINISH,
    MODEL_PATH,
    PREPARE,
    Call,
    GraphNodes,
    Timeline,
    replay,
    stretch_at,
)
from spark_prof.traces.tables import empty_frame
from spark_prof.vocabulary import PHASES

Rows = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JoinedPiece:
    """The rows that one piece adds to the tables of its rank, and what it lacks."""

    steps: pd.DataFrame
    ranges: pd.DataFrame
    kernels: pd.DataFrame
    host: pd.DataFrame
    overhead: pd.DataFrame
    markers: pd.DataFrame
    lost: tuple[str, ...] = field(default=())


def join_piece(
    steps: Rows,
    events: Rows,
    modules: Sequence[dict[str, Any]],
    read: Callable[[], Trace | None],
    piece: int,
    nodes: GraphNodes | None = None,
    thread: int = -1,
) -> JoinedPiece:
    """Joins the arrays of one piece with its trace.

    Args:
        steps: rows of pieces.STEP_DTYPE.
        events: rows of pieces.EVENT_DTYPE.
        modules: rows of the `modules` table.
        read: reads the trace of the piece; None where there is none. Where it is missing or
            damaged (CommandError) the piece has no kernels.
        thread: the thread that runs the steps, where no step says so; -1 if unknown.
    """
    paths = [module["path"] for module in modules]
    model = paths.index(MODEL_PATH) if MODEL_PATH in paths else None
    timeline, calls = replay(events, [module["layer"] for module in modules], model)
    if len(steps):
        thread = int(steps["thread"][0])
    lost: list[str] = []
    kernels, host, overhead, markers = map(empty_frame, ("kernels", "host", "overhead", "markers"))
    try:
        trace = read()
    except CommandError as error:
        lost.append(str(error))
    else:
        watched = int(steps["watched"].sum())
        if trace is None and watched:
            lost.append(f"{watched} steps have no kernels, the backend wrote none")
        if trace is not None:
            kernels, host = _kernels(trace, steps, timeline, thread), trace.launches
            kernels = _from_nodes(kernels, nodes)
            overhead, lost = trace.overhead, [*lost, *trace.lost]
            began = trace.markers["start_ns"].to_numpy(np.int64)
            markers = trace.markers.assign(step=_step_of(began, steps))
    return JoinedPiece(
        _step_rows(steps, piece), _range_rows(calls, steps, thread), kernels, host, overhead,
        markers, tuple(lost),
    )  # fmt: skip


def _step_rows(steps: Rows, piece: int) -> pd.DataFrame:
    frame = pd.DataFrame(steps).drop(columns="thread")
    frame["phase"] = [PHASES[index] for index in steps["phase"]]
    frame["piece"] = piece
    return frame


def _step_of(times: Int64s, steps: Rows) -> Int64s:
    # Where the clock was set back, the steps have to be sorted: they are looked up by time.
    steps = steps[np.argsort(steps["start_ns"], kind="stable")]
    index = stretch_at(times, steps["start_ns"], steps["end_ns"])
    return np.append(steps["step"], -1)[index].astype(np.int64)


def _range_rows(calls: Sequence[Call], steps: Rows, thread: int) -> pd.DataFrame:
    frame = pd.DataFrame(
        [(c.module, c.start_ns, c.end_ns) for c in calls],
        columns=["module", "start_ns", "end_ns"],
        dtype=np.int64,
    ).sort_values("start_ns", kind="stable")
    return frame.assign(thread=thread, step=_step_of(frame["start_ns"].to_numpy(np.int64), steps))


def _kernels(trace: Trace, steps: Rows, timeline: Timeline, thread: int) -> pd.DataFrame:
    operators = operator_rows(trace.operators)
    if thread >= 0:
        operators = operators[operators["stream"] == thread]
    launched = operators["start_ns"].to_numpy(np.int64)
    gpu = trace.gpu.assign(part=0)
    launches = trace.launches.drop_duplicates("correlation").set_index("correlation")
    if len(launches) and not (launches["thread"] == thread).any():
        # Without CPU activity Kineto knows threads by another number than the system's.
        launches = launches.assign(thread=thread)
    launches = launches[(launches["thread"] == thread) & (launches.index >= 0)]
    # A fill value keeps integers: as floats, nanoseconds since 1970 would lose their last digits.
    gpu_launched = launches["start_ns"].reindex(gpu["correlation"], fill_value=-1)
    rows = pd.concat([operators, gpu], ignore_index=True) if len(operators) else gpu
    times = np.concatenate([launched, gpu_launched.to_numpy(np.int64)])
    # What replays a CUDA graph says nothing about what the graph's kernels work for.
    graphs = launches.index[launches["name"].astype(str).str.contains("GraphLaunch")]
    replayed = np.append(np.zeros(len(launched), bool), gpu["correlation"].isin(graphs))
    module, layer = (np.where(replayed, -1, found) for found in timeline.at(times))
    began = launches.loc[graphs, "start_ns"].sort_values().to_numpy(np.int64)
    module = _after_the_model(module, times, began[timeline.at(began)[0] == PREPARE], steps)
    rows = rows.assign(step=_step_of(times, steps), module=module, layer=layer)
    return rows.sort_values("start_ns", kind="stable")


def _after_the_model(module: Int64s, times: Int64s, graphs: Int64s, steps: Rows) -> Int64s:
    """The modules, with FINISH for what a step launched after the graph of the whole model.

    The model itself was not called then: its graph was launched in its place, at `graphs`.
    """
    if not len(graphs) or not len(steps):
        return module
    latest = graphs[np.maximum(np.searchsorted(graphs, times) - 1, 0)]
    step = np.maximum(np.searchsorted(steps["start_ns"], times, side="right") - 1, 0)
    after = (latest < times) & (latest >= steps["start_ns"][step])
    return np.where((module == PREPARE) & after, FINISH, module).astype(np.int64)


def _from_nodes(kernels: pd.DataFrame, nodes: GraphNodes | None) -> pd.DataFrame:
    """The kernels, with module and layer of those inside a graph from when it was captured."""
    if nodes is None or nodes.frame.empty:
        return kernels
    found = nodes.find(kernels["graph_node"].to_numpy(np.int64))
    known = found >= 0
    columns = {
        name: np.where(known, nodes.frame[name].to_numpy(np.int64)[found], kernels[name])
        for name in ("module", "layer")
    }
    return kernels.assign(**columns)
