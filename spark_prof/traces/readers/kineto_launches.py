"""Which API call launched what ran on the GPU: both carry the same correlation number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.traces.readers.kineto_collect import DRIVER, Collected
from spark_prof.traces.scopes import Calls, Scopes


def module_calls(found: Collected, scopes: Scopes, is_module: Callable[[str], bool]) -> Calls:
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
        for column in ("name", "thread", "start_ns", "end_ns")
    ]
    return Calls(scopes, columns[0], found.texts, *columns[1:])


Int64s = npt.NDArray[np.int64]

_WORDS = ("launch", "memcpy", "memset")
"""Calls with these words in their names start work on the GPU."""


@dataclass(frozen=True)
class Launches:
    """The launches among the API calls of a trace.

    Attributes:
        of_gpu: the API call that launched each row of the GPU, -1 for none.
        idle: how many launches of kernels have none.
        shared: how many correlation numbers belong to several launches.
    """

    rows: Int64s
    of_gpu: Int64s
    idle: int
    shared: int


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
