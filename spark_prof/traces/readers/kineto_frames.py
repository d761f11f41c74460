"""Turns the columns of a Kineto trace into the frames that every reader gives."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.kineto_collect import GPU_KINDS, Collected
from spark_prof.traces.readers.kineto_events import Rows


@dataclass(frozen=True)
class Stretches:
    """Stretches of operators, none of which overlap within a thread.

    Attributes:
        part: 0 for its first stretch, then 1, 2...
    """

    operator: Int64s
    part: Int64s
    start_ns: Int64s
    end_ns: Int64s


def stretches(thread: Int64s, start: Int64s, end: Int64s) -> Stretches:
    """Splits nested operators into stretches; one that is shorter than a tick still has one.

    Args:
        end: ends in ns; one that ends after its caller goes on alone.
    """
    order = np.lexsort((-end, start, thread))
    borders = np.flatnonzero(np.diff(thread[order])) + 1
    rows = tuple(array("q") for _ in range(4))
    for mine in np.split(order, borders):
        _of_one_thread(mine.tolist(), start[mine].tolist(), end[mine].tolist(), *rows)
    return Stretches(*(np.frombuffer(column, np.int64) for column in rows))


def _of_one_thread(
    operators: list[int],
    starts: list[int],
    ends: list[int],
    owner: array[int],
    part: array[int],
    begin: array[int],
    finish: array[int],
) -> None:
    stack: list[list[int]] = []  # operator, end, stretches so far
    now = starts[0] if starts else 0

    def add(top: list[int], limit: int) -> None:
        nonlocal now
        owner.append(top[0])
        part.append(top[2])
        begin.append(now)
        finish.append(limit)
        top[2] += 1
        now = limit

    def run_until(limit: int) -> None:
        while stack and stack[-1][1] <= limit:
            top = stack.pop()
            if top[1] > now:
                add(top, top[1])
            elif not top[2]:
                add(top, now)
        if stack and limit > now:
            add(stack[-1], limit)

    for operator, start, end in zip(operators, starts, ends, strict=True):
        run_until(start)
        now = max(now, start)
        stack.append([operator, end, 0])
    run_until(max(ends, default=0))


Int64s = npt.NDArray[np.int64]


def gpu_frame(found: Collected) -> pd.DataFrame:
    """What ran on the GPU, in the order of the file."""
    rows = found.gpu
    shapes = [",".join(map(str, shape[:3])) for shape in rows.shapes]
    kinds = [GPU_KINDS.get(name, "") for name in found.texts]
    return pd.DataFrame(
        {
            "name": _texts(rows.column("name"), found.texts),
            "kind": _texts(rows.column("category"), kinds),
            **_times(rows, found.base_ns),
            "device": rows.column("device"),
            "stream": rows.column("stream"),
            "correlation": rows.column("correlation"),
            "graph_node": rows.column("graph_node"),
            "grid": _texts(rows.column("grid"), shapes),
            "block": _texts(rows.column("block"), shapes),
            "registers": rows.column("registers"),
            "shared_bytes": rows.column("shared_bytes"),
            "bytes": rows.column("bytes"),
            "cubin": _texts(np.zeros(len(rows), np.int64), [""]),
        }
    )


def launch_frame(found: Collected, rows: Int64s) -> pd.DataFrame:
    """The API calls with these indexes."""
    times = _times(found.api, found.base_ns)
    return pd.DataFrame(
        {
            "name": _texts(found.api.column("name")[rows], found.texts),
            "start_ns": times["start_ns"][rows],
            "end_ns": times["end_ns"][rows],
            "thread": thread_numbers(found)[found.api.column("thread")[rows]],
            "correlation": found.api.column("correlation")[rows],
        }
    )


def marker_frame(found: Collected) -> pd.DataFrame:
    """The annotations."""
    rows = found.annotations
    return pd.DataFrame(
        {
            "name": _texts(rows.column("name"), found.texts),
            "domain": _texts(np.zeros(len(rows), np.int64), [""]),
            **_times(rows, found.base_ns),
            "thread": thread_numbers(found)[rows.column("thread")],
        }
    )


def overhead_frame(found: Collected) -> pd.DataFrame:
    """What the profiler itself cost."""
    names = _texts(found.overhead.column("name"), found.texts)
    return pd.DataFrame({"name": names, **_times(found.overhead, found.base_ns)})


def operator_frame(found: Collected, all_of_them: bool) -> pd.DataFrame:
    """One row per stretch in which an operator itself ran; none unless `all_of_them` is set."""
    rows = found.operators
    times = _times(rows, found.base_ns)
    threads = thread_numbers(found)[rows.column("thread")]
    chosen = slice(None) if all_of_them else slice(0)
    own = stretches(threads[chosen], times["start_ns"][chosen], times["end_ns"][chosen])
    return pd.DataFrame(
        {
            "name": _texts(rows.column("name")[own.operator], found.texts),
            "start_ns": own.start_ns,
            "end_ns": own.end_ns,
            "part": own.part,
            "thread": threads[own.operator],
        }
    )


def thread_numbers(found: Collected) -> Int64s:
    """The operating system's number of each thread, -1 where the trace has none."""
    return np.array([_whole(thread) for _, thread in found.threads], np.int64)


def _whole(thread: int | str) -> int:
    number = int(thread) if isinstance(thread, int) or _is_number(thread) else -1
    return number if -(1 << 63) <= number < 1 << 63 else -1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _times(rows: Rows, base_ns: int) -> dict[str, Int64s]:
    return {name: rows.column(name) + base_ns for name in ("start_ns", "end_ns")}


def _texts(numbers: Int64s, texts: list[str]) -> pd.Categorical[str]:
    """The texts that the numbers stand for, as categories; equal texts are one."""
    used, places = np.unique(numbers, return_inverse=True)
    distinct = dict.fromkeys(texts[number] for number in used.tolist())
    order = {text: place for place, text in enumerate(distinct)}
    codes = np.array([order[texts[number]] for number in used.tolist()], np.int32)
    return pd.Categorical.from_codes(codes[places], pd.Index(list(distinct), dtype="str"))
