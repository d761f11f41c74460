"""Takes the wanted fields out of the records of one buffer: what can be done for each alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.traces.readers.cupti_blocks import Records
from spark_prof.traces.readers.cupti_launches import Distinct, distinct, distinct_launches
from spark_prof.traces.readers.cupti_names import CALLS
from spark_prof.traces.readers.cupti_records import (
    COPY,
    DRIVER_CALL,
    FILL,
    GRAPH,
    INTERNAL_LAUNCH,
    KERNELS,
    MARKER,
    OVERHEAD,
    PEER_COPY,
    RUNTIME_CALL,
)

GPU_KINDS = (*KERNELS, COPY, PEER_COPY, FILL)
CALL_KINDS = (RUNTIME_CALL, DRIVER_CALL, INTERNAL_LAUNCH)

_LATEST_NS = 1 << 62
_THREAD = 2
"""CUPTI_ACTIVITY_OBJECT_THREAD."""
_CALLS = {kind: np.array(list(calls), np.int64) for kind, calls in CALLS.items()}


@dataclass(frozen=True)
class Part:
    """Records of one kind as columns.

    Attributes:
        kind: their kind.
        columns: by the name of the table's column.
        names: what tells their names apart; of kernels also grid, block and shared memory.
        timeless: how many more have no time.
    """

    kind: int
    columns: dict[str, npt.NDArray[Any]]
    names: Distinct
    timeless: int


def take_parts(records: Records) -> list[Part]:
    """The records that are read, kind by kind; of whole graphs only their number."""
    return list(_parts(records))


def _parts(records: Records) -> Iterator[Part]:
    for kind in (*GPU_KINDS, *CALL_KINDS, OVERHEAD):
        if not records.count(kind):
            continue
        rows = records.rows(kind)
        count = len(rows)
        start, end = (rows[name].astype(np.int64) for name in ("start", "end"))
        good = (start > 0) & (start <= end) & (end < _LATEST_NS)
        if not good.all():
            rows, start, end = rows[good], start[good], end[good]
        columns = {"start_ns": start, "end_ns": end}
        if kind in GPU_KINDS:
            columns |= _work(kind, rows)
        elif kind in CALL_KINDS:
            columns |= _call(kind, rows)
        yield Part(kind, columns, _names(kind, rows), count - len(rows))
    if records.count(MARKER):
        yield _markers(records.rows(MARKER))
    if graphs := records.count(GRAPH):
        yield Part(GRAPH, {}, distinct(np.zeros(graphs, np.int64)), 0)


def _markers(rows: Any) -> Part:
    """A range is two records: what joins them, and where its names are, stays for later."""
    time = rows["timestamp"].astype(np.int64)
    good = (time > 0) & (time < _LATEST_NS)
    rows, count = rows[good], len(rows)
    thread = np.where(rows["objectKind"] == _THREAD, rows["objectId"][:, 1].astype(np.int64), -1)
    columns = {
        "time": time[good],
        "id": rows["id"].astype(np.int64),
        "flags": rows["flags"].astype(np.uint32),
        "thread": thread,
        "domain": rows["domain"].copy(),
    }
    return Part(MARKER, columns, distinct(rows["name"]), count - len(rows))


def _work(kind: int, rows: Any) -> dict[str, npt.NDArray[Any]]:
    columns = {
        "device": rows["deviceId"].astype(np.int32),
        "stream": rows["streamId"].astype(np.int64),
        "correlation": rows["correlationId"].astype(np.int64),
        "graph_node": rows["graphNodeId"].astype(np.int64),
    }
    if kind in KERNELS:
        return columns | {"registers": rows["registersPerThread"].astype(np.int32)}
    return columns | {"bytes": rows["bytes"].astype(np.int64)}


def _call(kind: int, rows: Any) -> dict[str, npt.NDArray[Any]]:
    known = np.isin(rows["cbid"], _CALLS[kind]) if kind in _CALLS else np.ones(len(rows), bool)
    return {
        "thread": rows["threadId"].astype(np.int64),
        "correlation": rows["correlationId"].astype(np.int64),
        "known": known,
    }


def _names(kind: int, rows: Any) -> Distinct:
    if kind in KERNELS:
        return distinct_launches(rows)
    if kind == FILL:
        return distinct(rows["memoryKind"])
    if kind in (COPY, PEER_COPY):
        way, source, target = (
            rows[name].astype(np.int64) for name in ("copyKind", "srcKind", "dstKind")
        )
        return distinct(way << 16 | source << 8 | target)
    return distinct(rows["overheadKind" if kind == OVERHEAD else "cbid"])
