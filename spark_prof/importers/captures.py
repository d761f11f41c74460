"""Reads what vLLM and SGLang profile while they capture a CUDA graph, and lays it on the replays.

A captured graph replays its launches in the order in which they were captured. While it is
captured, operators run in Python: the n-th launch was made for the operator around it, and so is
the n-th kernel of each replay. Launches that were captured have no kernel in the capture's trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.lookup import NameColumn
from spark_prof.importers.modules import modules_of
from spark_prof.traces.compressed import open_stream
from spark_prof.traces.foreign import Foreign, Window
from spark_prof.traces.scopes import enclosing, innermost

Int64s = npt.NDArray[np.int64]

_NAME = re.compile(r"(?:\w+_)?capture_(\d{1,7})_(FULL|PIECEWISE)")
_OF_CAPTURES = re.compile(r"(?:^|/)capture_traces/|graph_capture_rank")
_SIZE = re.compile(r"(?:^|[-_.])bs[-_]?(\d{1,7})(?!\d)")
"""How SGLang's files tell the batch size."""
_LOOKED_AT = 256 << 20
_WORK = ("launchkernel", "memcpy", "memset")


@dataclass(frozen=True)
class Capture:
    """One captured graph of the whole model."""

    source: str
    tokens: int  # tokens of the batch that it was captured for
    # For each launch the number of its component in COMPONENTS, -1 where nothing tells it.
    components: Int64s


def holds_captures(path: Path) -> bool:
    """Whether a Kineto trace is of graphs being captured, and of none being replayed."""
    begun, read, end = bool(_OF_CAPTURES.search(path.as_posix())), 0, b""
    with open_stream(path) as chunks:
        for chunk in chunks:
            text = end + chunk
            if b"GraphLaunch" in text:
                return False
            begun |= b"StreamBeginCapture" in text
            read, end = read + len(chunk), text[-len(b"cudaStreamBeginCapture") :]
            if read > _LOOKED_AT:
                break
    return begun


def captures_of(foreign: Foreign, path: Path) -> list[Capture]:
    """The graphs of the whole model that a capture's trace holds."""
    found = []
    for window in foreign.windows:
        scopes = foreign.processes[window.process].scopes
        frame = modules_of(scopes)
        names = np.append(frame.frame["component"].astype(str).to_numpy(object), "")
        components = np.array([CODES.get(name, -1) for name in names], np.int64)
        for tokens, start, end in _stretches(window, path.name):
            launches = _captured(window, start, end)
            scope = _scope_at(window.calls, launches["start_ns"].to_numpy(np.int64))
            found.append(Capture(path.name, tokens, components[frame.of_scope[scope]]))
    return found


def components_by_capture(
    correlation: Int64s, tokens: Int64s, captures: Sequence[Capture]
) -> tuple[Int64s, tuple[str, ...]]:
    """The component's number of each kernel by the capture of its graph, and what was used.

    Args:
        correlation: of each row its graph's launch, -1 outside graphs; rows in order of start.
        tokens: tokens of each row's step, 0 where unknown.
        captures: the captured graphs; one fits a replay of as many rows as it has launches.

    Returns:
        A number a row, -1 for none; and, where there are captures, one line about them.
    """
    found = np.full(len(correlation), -1, np.int64)
    inside = pd.Series(np.flatnonzero(correlation >= 0))
    used: Counter[str] = Counter()
    replays = inside.groupby(correlation[correlation >= 0]).indices.values()
    for rows in replays if captures else ():
        rows = inside.to_numpy()[rows]
        fitting = [c for c in captures if len(c.components) == len(rows)]
        same = [c for c in fitting if c.tokens == tokens[rows[0]]]
        if fitting:
            capture = (same or fitting)[0]
            found[rows] = capture.components
            used[capture.source] += 1
    idle = sorted({capture.source for capture in captures} - set(used))
    told = [f"{name} on {count} of {len(replays)} replays" for name, count in sorted(used.items())]
    told += [f"{', '.join(idle)} on none"] if idle else []
    line = f"captured graphs were laid, launch by launch, {'; '.join(told)}"
    return found, (line,) if captures else ()


def _stretches(window: Window, name: str) -> list[tuple[int, int, int]]:
    """Tokens, begin and end of each capture of a whole model."""
    markers = window.trace.markers
    times = markers[["start_ns", "end_ns"]].to_numpy(np.int64).tolist()
    found = []
    for marker, (start, end) in zip(markers["name"].astype(str), times, strict=True):
        match = _NAME.fullmatch(marker)
        if match and match[2] == "FULL":
            found.append((int(match[1]), start, end))
    launches = window.trace.launches
    if not found and len(launches):
        size = _SIZE.search(name)
        begin, end = int(launches["start_ns"].min()), int(launches["end_ns"].max())
        found.append((int(size[1]) if size else 0, begin, end))
    return found


def _captured(window: Window, start: int, end: int) -> pd.DataFrame:
    """The launches of a stretch that ran nothing then: a graph took them."""
    launches = window.trace.launches
    chosen = NameColumn(launches["name"]).flags(
        lambda name: any(word in name.lower() for word in _WORK)
    )
    chosen &= launches["start_ns"].between(start, end).to_numpy()
    chosen &= ~launches["correlation"].isin(window.trace.gpu["correlation"]).to_numpy()
    return launches[chosen].sort_values("start_ns", kind="stable")


def _scope_at(calls: pd.DataFrame, times: Int64s) -> Int64s:
    """The scope of the innermost call at each time, -1 for none; one thread captures."""
    calls = calls.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
    start, end = (calls[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    found = innermost(start, end, enclosing(start, end), times)
    return np.append(calls["scope"].to_numpy(np.int64), -1)[found]
