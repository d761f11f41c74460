"""Small foreign traces made by hand, and where the real ones are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.traces.foreign import Foreign, ForeignProcess, Trace, Window
from spark_prof.traces.scopes import Scopes
from spark_prof.traces.tables import empty_frame

DATA = Path(__file__).resolve().parent.parent / "data" / "kineto"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "kineto"

GPU = {
    "kind": "kernel", "device": 0, "stream": 7, "graph_node": 0, "grid": "1,1,1",
    "block": "32,1,1", "registers": 0, "shared_bytes": 0, "bytes": 0, "cubin": "",
}  # fmt: skip


def window(kernels, markers=(), calls=(), launches=None, process=0):
    """A window.

    Args:
        kernels: (name, launched, start, end, scope, correlation) of each kernel; launched -1 for
            one without a launch.
        markers: (name, start, end) of each range.
        calls: (scope, start, end) of each call of a module.
        launches: (name, start, end, correlation); by default a cudaLaunchKernel for each kernel.
    """
    names, launched, start, end, scope, correlation = map(list, zip(*kernels, strict=True))
    gpu = pd.DataFrame({"name": names, "start_ns": start, "end_ns": end} | GPU)
    gpu["correlation"] = correlation
    if launches is None:
        launches = [
            ("cudaLaunchKernel", t, t + 1, c)
            for t, c in zip(launched, correlation, strict=True)
            if t >= 0
        ]
    host = pd.DataFrame(launches, columns=["name", "start_ns", "end_ns", "correlation"])
    host["thread"] = 1
    marks = pd.DataFrame(markers, columns=["name", "start_ns", "end_ns"])
    marks = marks.assign(domain="", thread=1)
    for frame in (gpu, host, marks):
        frame["name"] = frame["name"].astype("category")
    trace = Trace(
        gpu=gpu, launches=host, operators=empty_frame("kernels").iloc[:0],
        overhead=empty_frame("overhead"), markers=marks,
    )  # fmt: skip
    called = pd.DataFrame(calls, columns=["scope", "start_ns", "end_ns"], dtype=np.int64)
    return Window(
        process, trace, np.array(launched, np.int64), np.ones(len(gpu), np.int64),
        np.array(scope, np.int64), called.assign(thread=1),
    )  # fmt: skip


def foreign(windows, scopes=None, rank=0, facts=None):
    """A trace of one process."""
    process = ForeignProcess(rank, facts or {}, scopes or Scopes())
    return Foreign("test", [process], iter(windows))
