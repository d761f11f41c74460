"""Guesses the steps of a trace without step ranges from its CUDA graph launches.

An engine that replays one graph of the whole model a step launches it once in each decode step.
Between two launches the host pauses longest where it waits for the sampled tokens and chooses the
next batch: there one step ends and the next begins. This is a guess, and says so.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import classify
from spark_prof.importers.step_names import Batch
from spark_prof.importers.steps import Steps
from spark_prof.traces.foreign import Window

__all__ = ["steps_by_graphs"]

Int64s = npt.NDArray[np.int64]

_FEWEST_STEPS = 3
_FEWEST_LAYERS = 2
"""A graph with fewer attention kernels is a piece of a model, not a step of it."""


def steps_by_graphs(window: Window) -> Steps | None:
    """The steps of a window that is a whole trace; None where graphs do not tell."""
    gpu, launches = window.trace.gpu, window.trace.launches
    replayed = gpu[window.in_graphs()]
    if replayed.empty:
        return None
    attention = _is_attention(replayed["name"])
    layers = pd.Series(attention).groupby(replayed["correlation"].to_numpy()).sum()
    whole = layers.index[layers >= max(_FEWEST_LAYERS, int(layers.median()))]
    times = launches.drop_duplicates("correlation").set_index("correlation")["start_ns"]
    graphs = np.sort(times.reindex(whole).dropna().to_numpy(np.int64))
    if len(graphs) < _FEWEST_STEPS:
        return None
    calls = launches[["start_ns", "end_ns"]].sort_values("start_ns").to_numpy(np.int64)
    begins = [_longest_pause(calls, a, b) for a, b in itertools.pairwise(graphs)]
    first = _before_first(calls, graphs[0], np.diff(graphs).max())
    start = np.array([first, *begins], np.int64)
    last = max(int(launches["end_ns"].max()), int(gpu["end_ns"].max()))
    end = np.append(start[1:] - 1, last)
    steps = Steps()
    steps.add(start, end, [Batch("decode")] * len(start))
    before = calls[calls[:, 0] < first, 0]
    if len(before) and _is_attention(gpu["name"])[window.launch_ns < first].any():
        steps.add(before[:1], np.array([first - 1], np.int64), [Batch("prefill")])
        steps.lost.append("what ran before the first decode step counts as one prefill step")
    steps.lost.append(
        "no range names the steps: each launch of a CUDA graph of the whole model counts as one "
        "decode step (a guess), its batch size is unknown"
    )
    return steps


def _is_attention(names: pd.Series) -> npt.NDArray[np.bool_]:
    """Which kernels are a layer's attention; what only gets it ready writes or counts."""
    categories = names.cat.categories
    table = [classify(str(n)).component == "attention" for n in categories] + [False]
    return np.array(table)[names.cat.codes.to_numpy()]


def _longest_pause(calls: Int64s, after: int, before: int) -> int:
    """When the call begins that ends the longest pause between two moments.

    Args:
        calls: start and end of each call, in order.
        after: the first moment, at which a call begins.
        before: the last one, at which a call begins.
    """
    low, high = np.searchsorted(calls[:, 0], [after, before + 1])
    between = calls[low:high]
    if len(between) < 2:
        return before
    return int(between[1:, 0][np.argmax(between[1:, 0] - between[:-1, 1])])


def _before_first(calls: Int64s, graph: int, period: int) -> int:
    """Where the first decode step begins: after the longest pause within a period before it."""
    return _longest_pause(calls, graph - int(period), graph)
