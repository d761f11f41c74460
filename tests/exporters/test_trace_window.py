"""A window of a recording: bounded, of whole steps, and as the whole trace has its kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.exporters.perfetto import MOST_KERNELS, TraceWindow, window_around, window_trace
from spark_prof.traces.bundle import Bundle
from tests.exporters.test_perfetto import GPU, exported

DATA = Path(__file__).parents[1] / "data"
SOURCES = ("h100-gpt-oss-20b-mxfp4-graphs", "code-h100/qwen3-30b-a3b-nvfp4")
_SAME = (
    "stream", "device", "grid", "block", "registers per thread", "shared memory", "step", "layer",
    "component", "engine", "precision", "evidence", "conversion",
)  # fmt: skip


def begins(prepared: Prepared, window: TraceWindow) -> np.ndarray[Any, Any]:
    start = prepared.kernels.start_ns
    return start[(start >= window.begin_ns) & (start < window.end_ns)]


def events(document: dict[str, Any]) -> set[str]:
    """The kernels, copies and steps, at the clock's time."""
    base = int(document["baseTimeNanoseconds"])
    found = set()
    for event in document["traceEvents"]:
        at = base + round(float(event["ts"]) * 1e3)
        if event.get("cat") in GPU:
            same = [event["args"][name] for name in _SAME]
            found.add(json.dumps([event["name"], at, round(float(event["dur"]) * 1e3), same]))
        elif event.get("cat") == "step":
            found.add(json.dumps([event["name"], at, event["args"]]))
    return found


def test_windows_are_bounded_and_hold_the_range_in_whole_steps() -> None:
    random = np.random.default_rng(3)
    for source in SOURCES:
        shown = prepare(str(DATA / source))
        start, steps = shown.kernels.start_ns, shown.steps
        edges = {*steps["begin_ns"], *steps["finish_ns"]}
        for _ in range(60):
            most = int(random.integers(1, 2 * len(start)))
            first, last = np.sort(random.integers(0, len(start), 2)).tolist()
            if random.random() < 0.5:
                last = min(first + most // 2, last)
            window = window_around(shown, int(start[first]), int(start[last]) + 1, most)
            inside = begins(shown, window)
            assert 0 < len(inside) <= most
            assert inside[0] <= start[first] <= inside[-1]
            if last - first < most:
                assert inside[-1] >= start[last]
            if len(inside) == len(start):
                assert window.end_ns > shown.kernels.end_ns.max()
            elif inside[0] > start[0] and steps["begin_ns"].between(inside[0], start[first]).any():
                assert window.begin_ns in edges


@pytest.mark.slow
def test_a_window_says_of_kernels_and_steps_what_the_whole_trace_does() -> None:
    for source in SOURCES:
        shown = prepare(str(DATA / source))
        whole = events(exported(Bundle(DATA / source)))
        for most in (700, 10**6):
            middle = int(np.median(shown.steps["begin_ns"]))
            window = window_around(shown, middle, middle + 1, most)
            trace = window_trace({shown.rank: shown}, window, {})
            document = json.loads(trace.text)
            found = events(document)
            assert found <= whole
            kernels = [e for e in document["traceEvents"] if e.get("cat") in GPU]
            assert len(kernels) == min(len(begins(shown, window)), MOST_KERNELS)
            assert document["baseTimeNanoseconds"] == trace.first_ns
            if most > len(shown.kernels) <= MOST_KERNELS:
                assert found == whole


def test_another_rank_is_moved_to_the_clock_of_the_first() -> None:
    shown = prepare(str(DATA / SOURCES[0]))
    window = window_around(shown, int(shown.kernels.start_ns[0]), int(shown.kernels.end_ns[0]), 100)
    late = TraceWindow(window.begin_ns - 5_000, window.end_ns - 5_000)
    moved, trace = window_trace({0: shown}, late, {0: 5_000}), window_trace({0: shown}, window, {})
    assert moved.first_ns == trace.first_ns - 5_000
    assert len(events(json.loads(moved.text))) == len(events(json.loads(trace.text)))
