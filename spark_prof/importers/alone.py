"""Makes one process of several files of Nsight Compute, which often writes one for each kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from spark_prof.traces.foreign import Foreign, Window

__all__ = ["one_process"]


def one_process(traces: Iterable[Foreign]) -> Foreign:
    """The kernels of all files one after another, with the facts of the first."""
    whole = list(traces)
    metrics, launches = [], 0
    for trace in whole:
        for process in trace.processes:
            rows = process.metrics
            metrics.append(rows.assign(launch=rows["launch"] + launches))
            launches += int(rows["launch"].max()) + 1 if len(rows) else 0
    process = replace(whole[0].processes[0], metrics=pd.concat(metrics, ignore_index=True))
    lost = list(dict.fromkeys(line for trace in whole for line in trace.lost))
    return Foreign(whole[0].format, [process], _in_a_row(whole), lost)


def _in_a_row(traces: list[Foreign]) -> Iterator[Window]:
    """One window of all; each file's kernels begin where those before them end."""
    windows = [window for trace in traces for window in trace.windows]
    frames, end = [], 0
    for window in windows:
        gpu = window.trace.gpu
        if gpu.empty:
            continue
        shift = end - int(gpu["start_ns"].min())
        times = {name: gpu[name] + shift for name in ("start_ns", "end_ns")}
        frames.append(gpu.assign(**times, name=gpu["name"].astype("str")))
        end = int(frames[-1]["end_ns"].max())
    if not frames:
        return
    gpu = pd.concat(frames, ignore_index=True)
    gpu["name"] = gpu["name"].astype("category")
    first = windows[0]
    unknown = np.full(len(gpu), -1, np.int64)
    yield Window(0, replace(first.trace, gpu=gpu), unknown, unknown, unknown, first.calls)
