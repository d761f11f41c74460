"""The tracks above the streams: steps, layers and components, and what counters sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from spark_prof.exporters.event_text import choices, microseconds, numbers
from spark_prof.exporters.rank_trace import Int64s, RankTrace, slices

_COUNTS = (
    "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "context_tokens",
)  # fmt: skip

_COUNTERS = (
    ("dram_read_bytes", "DRAM read (GB/s)", None),
    ("dram_write_bytes", "DRAM write (GB/s)", None),
    ("tensor_active", "tensor pipe busy (%)", 100.0),
    ("sm_active", "SMs busy (%)", 100.0),
    ("warps_active", "occupancy (%)", 100.0),
)
"""Column of `counters`, what its track is called, and its factor; bytes become a rate."""


def write_steps(trace: RankTrace, windows: pd.DataFrame) -> None:
    """Writes the steps that were watched, as long as the report's books say.

    Args:
        trace: the rank.
        windows: what `analyzers.windows.step_windows` returned for all its kernels.
    """
    windows = windows[trace.selection.rows(windows["step"])]
    track = trace.tracks.add("steps")
    start = windows["begin_ns"].to_numpy(np.int64)
    names = [
        json.dumps(f"{phase} step {step}")
        for phase, step in zip(windows["phase"].astype(str), windows["step"].tolist(), strict=True)
    ]
    counts = [json.dumps(row) for row in windows[list(_COUNTS)].astype(int).to_dict("records")]
    every = np.arange(len(windows), dtype=np.int64)
    trace.write(
        f'{{"ph":"X","cat":"step","tid":{track},"name":', choices(every, names),
        ',"ts":', trace.since_origin(start),
        ',"dur":', microseconds(windows["finish_ns"].to_numpy(np.int64) - start),
        ',"args":', choices(every, counts),
    )  # fmt: skip


def write_spans(trace: RankTrace) -> None:
    """Writes when each layer and each component ran, from the times of its kernels.

    A span is what follows one another of one step and one layer or component. It ends with its
    last kernel, or where the next span begins.
    """
    # A hostile bundle may name any layer: only those that occur get a text.
    known, layer = np.unique(trace.kernels["layer"].to_numpy(np.int64), return_inverse=True)
    _spans(trace, "layers", layer, ["" if n < 0 else f"layer {n}" for n in known.tolist()])
    components = trace.kernels["component"].cat
    _spans(
        trace,
        "components",
        components.codes.to_numpy().astype(np.int64),
        list(components.categories),
    )


def write_counters(trace: RankTrace) -> None:
    """Writes what was sampled; where sampling pauses, the track falls to 0."""
    samples = trace.bundle.frame("counters", trace.rank).sort_values("start_ns")
    if samples.empty:
        return
    start = samples["start_ns"].to_numpy(np.int64)
    end = samples["end_ns"].to_numpy(np.int64)
    pause = np.append(start[1:] > end[:-1], True)
    for column, name, factor in _COUNTERS:
        value = samples[column].to_numpy(np.float64)
        value = value * factor if factor else value / np.maximum(end - start, 1)
        known = np.isfinite(value)
        at = np.concatenate([start[known], end[known & pause]])
        found = np.concatenate([value[known], np.zeros(int((known & pause).sum()))])
        for part in slices(len(at)):
            written = [f"{number:.4g}" for number in found[part].tolist()]
            trace.write(
                f'{{"ph":"C","name":{json.dumps(name)},"args":{{"value":',
                choices(np.arange(len(written), dtype=np.int64), written),
                '},"ts":', trace.since_origin(at[part]),
            )  # fmt: skip


def _spans(trace: RankTrace, title: str, word: Int64s, words: Sequence[str]) -> None:
    """Writes one track; a kernel whose word is empty ends a span and begins none."""
    track = trace.tracks.add(title)
    if not len(word):
        return
    start = trace.kernels["start_ns"].to_numpy(np.int64)
    end = trace.kernels["end_ns"].to_numpy(np.int64)
    step = trace.kernels["step"].to_numpy(np.int64)
    first = np.flatnonzero(np.append(True, (np.diff(word) != 0) | (np.diff(step) != 0)))
    begin = start[first]
    finish = np.maximum.reduceat(end, first)
    finish[:-1] = np.minimum(finish[:-1], begin[1:])
    named = np.array([bool(name) for name in words])[word[first]]
    kernels = np.diff(np.append(first, len(word)))
    first, begin, finish, kernels = (part[named] for part in (first, begin, finish, kernels))
    written = [json.dumps(name) for name in words]
    for part in slices(len(first)):
        trace.write(
            f'{{"ph":"X","cat":"{title[:-1]}","tid":{track},"name":',
            choices(word[first[part]], written),
            ',"ts":', trace.since_origin(begin[part]),
            ',"dur":', microseconds(finish[part] - begin[part]),
            ',"args":{"kernels":', numbers(kernels[part]),
            ',"step":', numbers(step[first[part]], none=-1), "}",
        )  # fmt: skip
