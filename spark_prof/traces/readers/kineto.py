"""Reads the JSON that PyTorch's profiler (Kineto) writes.

Format: libkineto's output_json.cpp. `ts` and `dur` are microseconds with three decimals, relative
to `baseTimeNanoseconds`; GPU rows have the device as pid and the stream as tid; a kernel and the
API call that launched it share `args.correlation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from spark_prof.errors import CommandError

__all__ = ["KinetoTrace", "read_kineto"]

_GPU = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_API = frozenset({"cuda_runtime", "cuda_driver"})
_LAUNCHES = ("launch", "memcpy", "memset")


@dataclass(frozen=True)
class KinetoTrace:
    """One trace as three frames with the columns of the bundle's tables.

    `gpu` are kernels, copies and memsets, `launches` the API calls that started them, `operators`
    the stretches of CPU operators with their `thread`.
    """

    gpu: pd.DataFrame
    launches: pd.DataFrame
    operators: pd.DataFrame


def read_kineto(path: Path) -> KinetoTrace:
    """Reads one trace.

    Raises:
        CommandError: the file is not a whole Kineto trace.
    """
    try:
        document = orjson.loads(path.read_bytes())
        events = document["traceEvents"]
        base = int(document.get("baseTimeNanoseconds", 0))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{path} is not a whole Kineto trace ({error})") from error
    complete = [e for e in events if e.get("ph") == "X"]
    gpu = [e for e in complete if e.get("cat") in _GPU]
    started = {_argument(e, "correlation", -1) for e in gpu}
    launches = [
        e
        for e in complete
        if e.get("cat") in _API
        and (
            _argument(e, "correlation", -2) in started
            or any(word in e["name"].lower() for word in _LAUNCHES)
        )
    ]
    operators = [e for e in complete if e.get("cat") == "cpu_op"]
    return KinetoTrace(
        gpu=_gpu_frame(gpu, base),
        launches=_launch_frame(launches, base),
        operators=_operator_frame(operators, base),
    )


def _times(events: list[dict[str, Any]], base: int) -> tuple[Any, Any]:
    """Start and end of each event in ns."""
    start = np.array([e["ts"] for e in events], np.float64)
    duration = np.array([e.get("dur", 0) for e in events], np.float64)
    start_ns = base + np.rint(start * 1000).astype(np.int64)
    return start_ns, start_ns + np.rint(duration * 1000).astype(np.int64)


def _argument(event: dict[str, Any], name: str, default: int) -> int:
    value = event.get("args", {}).get(name, default)
    return value if isinstance(value, int) else default


def _triple(event: dict[str, Any], name: str) -> str:
    value = event.get("args", {}).get(name)
    return ",".join(map(str, value[:3])) if isinstance(value, list) else ""


def _gpu_frame(events: list[dict[str, Any]], base: int) -> pd.DataFrame:
    start, end = _times(events, base)
    return pd.DataFrame(
        {
            "name": [str(e["name"]) for e in events],
            "kind": [_GPU[e["cat"]] for e in events],
            "start_ns": start,
            "end_ns": end,
            "device": [_argument(e, "device", 0) for e in events],
            "stream": [_argument(e, "stream", 0) for e in events],
            "correlation": [_argument(e, "correlation", -1) for e in events],
            "graph_node": [_argument(e, "graph node id", 0) for e in events],
            "grid": [_triple(e, "grid") for e in events],
            "block": [_triple(e, "block") for e in events],
            "registers": [_argument(e, "registers per thread", 0) for e in events],
            "shared_bytes": [_argument(e, "shared memory", 0) for e in events],
            "bytes": [_argument(e, "bytes", 0) for e in events],
        }
    )


def _launch_frame(events: list[dict[str, Any]], base: int) -> pd.DataFrame:
    start, end = _times(events, base)
    return pd.DataFrame(
        {
            "name": [str(e["name"]) for e in events],
            "start_ns": start,
            "end_ns": end,
            "thread": _threads(events),
            "correlation": [_argument(e, "correlation", -1) for e in events],
        }
    )


def _threads(events: list[dict[str, Any]]) -> list[int]:
    return [tid if isinstance(tid := e.get("tid"), int) else -1 for e in events]


def _operator_frame(events: list[dict[str, Any]], base: int) -> pd.DataFrame:
    """One row per stretch in which an operator itself ran, so that rows never overlap."""
    start, end = _times(events, base)
    threads = np.array(_threads(events), np.int64)
    rows: list[tuple[int, int, int, int]] = []
    for thread in np.unique(threads):
        mine = np.flatnonzero(threads == thread)
        order = mine[np.lexsort((-end[mine], start[mine]))]
        rows.extend(_stretches(order.tolist(), start.tolist(), end.tolist()))
    index, part, begin, finish = (np.array(c, np.int64) for c in zip(*rows, strict=True)) if rows \
        else (np.empty(0, np.int64),) * 4
    names = np.array([str(e["name"]) for e in events], dtype=object)
    return pd.DataFrame(
        {
            "name": names[index] if len(index) else [],
            "start_ns": begin,
            "end_ns": finish,
            "part": part,
            "thread": threads[index] if len(index) else np.empty(0, np.int64),
        }
    )


def _stretches(
    order: list[int], start: list[int], end: list[int]
) -> list[tuple[int, int, int, int]]:
    """(event, part, start, end) of nested events of one thread, by when each ran itself."""
    rows: list[tuple[int, int, int, int]] = []
    stack: list[list[int]] = []  # event, end, parts so far
    now = 0

    def run_until(limit: int) -> None:
        nonlocal now
        while stack and stack[-1][1] <= limit:
            emit(stack[-1], stack[-1][1])
            if not stack[-1][2]:  # shorter than the clock's tick: still one call
                rows.append((stack[-1][0], 0, now, now))
            stack.pop()
        if stack:
            emit(stack[-1], limit)

    def emit(top: list[int], limit: int) -> None:
        nonlocal now
        if limit > now:
            rows.append((top[0], top[2], now, limit))
            top[2] += 1
            now = limit

    for event in order:
        run_until(start[event])
        now = max(now, start[event])
        bound = stack[-1][1] if stack else end[event]
        stack.append([event, min(end[event], bound), 0])
    run_until(max(end[event] for event in order) if order else 0)
    return rows
