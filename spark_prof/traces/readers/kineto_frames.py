"""Turns the columns of a Kineto trace into the frames that every reader gives, and joins them.

Work on the GPU and the API call that launched it share a correlation number. Modules show as Python
frames called `nn.Module: ...` where the profiler ran with stacks, and as annotations
(`record_function`) where somebody set them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.kineto_collect import DRIVER, GPU_KINDS, Collected
from spark_prof.traces.readers.kineto_events import GPU_NUMBERS, Rows
from spark_prof.traces.scopes import ModuleRanges


def module_ranges(found: Collected, is_module: Callable[[str], bool]) -> ModuleRanges:
    """The calls of modules among frames, annotations and operators, times after the trace's base.

    vLLM's attention and its mixture of experts are operators, which compiled models have too.
    """
    chosen = [(found.frames, np.ones(len(found.frames), bool))]
    for events in (found.annotations, found.operators):
        distinct, places = np.unique(events.column("name"), return_inverse=True)
        named = [is_module(found.texts[number]) for number in distinct.tolist()]
        chosen.append((events, np.array([*named, False])[places]))
    columns = [
        np.concatenate([events.column(column)[rows] for events, rows in chosen])
        for column in ("start_ns", "end_ns", "thread", "name")
    ]
    order = np.lexsort((-columns[1], columns[0], columns[2]))
    return ModuleRanges(*(column[order] for column in columns))


_WORDS = ("launch", "memcpy", "memset")
"""Calls with these words in their names start work on the GPU."""


@dataclass(frozen=True)
class Launches:
    """The launches among the API calls of a trace."""

    rows: Int64s
    of_gpu: Int64s  # the API call that launched each row of the GPU, -1 for none
    idle: int  # how many launches of kernels have none
    shared: int  # how many correlation numbers belong to several launches


def find_launches(found: Collected) -> Launches:
    """Joins the rows of the GPU with their API calls.

    A driver call inside a runtime call with the same number is no launch of its own. Where a
    number was used again, work belongs to the latest call before it.
    """
    numbers = found.api.column("correlation")
    started = np.isin(numbers, found.gpu.column("correlation")) & (numbers >= 0)
    words = [any(word in name.lower() for word in _WORDS) for name in found.texts]
    kernels = np.array(["launch" in name.lower() for name in found.texts], bool)
    api_name = found.api.column("name")
    chosen = started | np.array(words, bool)[api_name]
    driver = found.api.column("category") == found.names.get(DRIVER, -1)
    inner = driver & np.isin(numbers, numbers[~driver & chosen]) & (numbers >= 0)
    rows = np.flatnonzero(chosen & ~inner)
    numbered = rows[numbers[rows] >= 0]
    position = _latest_before(
        numbers[numbered],
        found.api.column("start_ns")[numbered],
        found.gpu.column("correlation"),
        found.gpu.column("start_ns"),
    )
    of_gpu = np.where(position >= 0, np.append(numbered, -1)[position], -1)
    counts = np.unique(numbers[numbered], return_counts=True)[1]
    idle = int((kernels[api_name] & ~started)[rows].sum())
    return Launches(rows, of_gpu.astype(np.int64), idle, int((counts > 1).sum()))


def operators_of(found: Collected) -> Int64s:
    """The operator with the same External id as each row of the GPU, -1 for none."""
    ids = found.operators.column("external")
    wanted = found.gpu.column("external")
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    match = (ids[order[place]] == wanted) & (wanted >= 0)
    return np.where(match, order[place], -1).astype(np.int64)


def _latest_before(numbers: Int64s, times: Int64s, wanted: Int64s, moments: Int64s) -> Int64s:
    """For each wanted number its last row up to that moment, else its first; -1 for none."""
    if not len(numbers) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    distinct = np.unique(numbers)
    place = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
    # Number and time become one key: ranks are small where nanoseconds are not.
    ranks = np.unique(np.concatenate([times, moments]), return_inverse=True)[1]
    key = np.searchsorted(distinct, numbers) * len(ranks) + ranks[: len(times)]
    order = np.argsort(key, kind="stable")
    latest = np.searchsorted(key[order], place * len(ranks) + ranks[len(times) :], "right") - 1
    first = np.searchsorted(np.sort(numbers, kind="stable"), wanted)
    found = order[np.minimum(np.maximum(latest, first), len(order) - 1)]
    return np.where(distinct[place] == wanted, found, -1).astype(np.int64)


def stretches(thread: Int64s, start: Int64s, end: Int64s) -> Iterator[Int64s]:
    """Splits nested operators into stretches; one that is shorter than a tick still has one.

    Args:
        end: ends in ns; one that ends after its caller goes on alone.

    Returns:
        Operator, number of the stretch within it, start and end of each stretch.
    """
    order = np.lexsort((-end, start, thread))
    borders = np.flatnonzero(np.diff(thread[order])) + 1
    rows = tuple(array("q") for _ in range(4))
    for mine in np.split(order, borders):
        _of_one_thread(mine.tolist(), start[mine].tolist(), end[mine].tolist(), *rows)
    return (np.frombuffer(column, np.int64) for column in rows)


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
            "grid": _texts(rows.column("grid"), shapes),
            "block": _texts(rows.column("block"), shapes),
            **{name: rows.column(name) for name in GPU_NUMBERS},
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
    operator, part, start, end = stretches(
        threads[chosen], times["start_ns"][chosen], times["end_ns"][chosen]
    )
    return pd.DataFrame(
        {
            "name": _texts(rows.column("name")[operator], found.texts),
            "start_ns": start,
            "end_ns": end,
            "part": part,
            "thread": threads[operator],
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
