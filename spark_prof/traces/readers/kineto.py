"""Reads the JSON that PyTorch's profiler (Kineto) writes.

Format: libkineto's output_json.cpp. `ts` and `dur` are microseconds with three decimals, relative
to `baseTimeNanoseconds`; GPU rows have the device as pid and the stream as tid; a kernel and the
API call that launched it share `args.correlation`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.traces.readers.trace import Trace
from spark_prof.traces.tables import empty_frame

__all__ = ["read_kineto"]

_GPU = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_API = frozenset({"cuda_runtime", "cuda_driver"})
_LAUNCHES = ("launch", "memcpy", "memset")
_LATEST_NS = 1 << 62
"""Times further from the epoch than this many nanoseconds are damage."""


def read_kineto(path: Path) -> Trace:
    """Reads one trace.

    Raises:
        CommandError: the file is not a whole Kineto trace.
    """
    try:
        document = orjson.loads(path.read_bytes())
        events = document["traceEvents"]
        base = int(document.get("baseTimeNanoseconds", 0))
        if not isinstance(events, list) or abs(base) > _LATEST_NS:
            raise ValueError("its events or its base time are none")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CommandError(f"{path} is not a whole Kineto trace ({error})") from error
    complete = [e for e in events if _is_complete(e)]
    gpu = [e for e in complete if e["cat"] in _GPU]
    started = {_argument(e, "correlation", -1) for e in gpu}
    launches = [
        e
        for e in complete
        if e["cat"] in _API
        and (
            _argument(e, "correlation", -2) in started
            or any(word in e["name"].lower() for word in _LAUNCHES)
        )
    ]
    operators = [e for e in complete if e["cat"] == "cpu_op"]
    return Trace(
        gpu=_gpu_frame(gpu, base),
        launches=_launch_frame(launches, base),
        operators=_operator_frame(operators, base),
        overhead=empty_frame("overhead"),
    )


def _is_complete(event: Any) -> bool:
    """Whether the event has a name, a category, a start and an end."""
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("cat"), str)
        and isinstance(event.get("name"), str)
        and isinstance(ts := event.get("ts"), (int, float))
        and isinstance(duration := event.get("dur", 0), (int, float))
        and abs(ts) < _LATEST_NS / 1000
        and 0 <= duration < _LATEST_NS / 1000
    )


def _times(events: list[dict[str, Any]], base: int) -> tuple[Any, Any]:
    """Start and end of each event in ns."""
    start_ns = base + _nanoseconds([e["ts"] for e in events])
    return start_ns, start_ns + _nanoseconds([e.get("dur", 0) for e in events])


def _nanoseconds(microseconds: list[float]) -> Any:
    """Exact as long as a float tells one nanosecond from the next, which is 285 years."""
    fraction, whole = np.modf(np.array(microseconds, np.float64))
    return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64)


def _argument(event: dict[str, Any], name: str, default: int, bits: int = 64) -> int:
    """A number among the event's arguments; the default where it is none that has these bits."""
    arguments = event.get("args")
    value = arguments.get(name) if isinstance(arguments, dict) else None
    return _whole(value, default, bits)


def _whole(value: object, default: int, bits: int = 64) -> int:
    return value if isinstance(value, int) and -1 <= value >> (bits - 1) <= 0 else default


def _triple(event: dict[str, Any], name: str) -> str:
    arguments = event.get("args")
    value = arguments.get(name) if isinstance(arguments, dict) else None
    return ",".join(map(str, value[:3])) if isinstance(value, list) else ""


def _gpu_frame(events: list[dict[str, Any]], base: int) -> pd.DataFrame:
    start, end = _times(events, base)
    return pd.DataFrame(
        {
            "name": [e["name"] for e in events],
            "kind": [_GPU[e["cat"]] for e in events],
            "start_ns": start,
            "end_ns": end,
            "device": [_argument(e, "device", 0, 32) for e in events],
            "stream": [_argument(e, "stream", 0) for e in events],
            "correlation": [_argument(e, "correlation", -1) for e in events],
            "graph_node": [_argument(e, "graph node id", 0) for e in events],
            "grid": [_triple(e, "grid") for e in events],
            "block": [_triple(e, "block") for e in events],
            "registers": [_argument(e, "registers per thread", 0, 32) for e in events],
            "shared_bytes": [_argument(e, "shared memory", 0, 32) for e in events],
            "bytes": [_argument(e, "bytes", 0) for e in events],
            "cubin": "",
        }
    )


def _launch_frame(events: list[dict[str, Any]], base: int) -> pd.DataFrame:
    start, end = _times(events, base)
    return pd.DataFrame(
        {
            "name": [e["name"] for e in events],
            "start_ns": start,
            "end_ns": end,
            "thread": _threads(events),
            "correlation": [_argument(e, "correlation", -1) for e in events],
        }
    )


def _threads(events: list[dict[str, Any]]) -> list[int]:
    return [_whole(e.get("tid"), -1) for e in events]


def _operator_frame(events: list[dict[str, Any]], base: int) -> pd.DataFrame:
    """One row per stretch in which an operator itself ran, so that rows never overlap."""
    start, end = _times(events, base)
    threads = np.array(_threads(events), np.int64)
    rows: list[tuple[int, int, int, int]] = []
    for thread in np.unique(threads):
        mine = np.flatnonzero(threads == thread)
        order = mine[np.lexsort((-end[mine], start[mine]))]
        rows.extend(_stretches(order.tolist(), start.tolist(), end.tolist()))
    index, part, begin, finish = (
        (np.array(c, np.int64) for c in zip(*rows, strict=True))
        if rows
        else (np.empty(0, np.int64),) * 4
    )
    names = np.array([e["name"] for e in events], dtype=object)
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
        stack.append([event, end[event], 0])
    run_until(max(end[event] for event in order) if order else 0)
    return rows
