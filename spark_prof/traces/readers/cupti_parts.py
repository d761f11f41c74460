"""Takes the wanted fields out of CUPTI's records, and collects them in columns.

`take_parts` does for one buffer what can be done for it alone. Launches that are alike share name,
grid, block and shared memory, which are looked up once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.cupti_blocks import Records
from spark_prof.traces.readers.cupti_records import (
    CALLS,
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


class Names:
    """A categorical column's names, numbered as they come.

    Args:
        name_of: the name that stands for a value; several values may have the same.
    """

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        self._by_value: dict[int, int] = {}
        self._by_name: dict[str, int] = {}

    def code(self, value: int) -> int:
        """The number of the value's name."""
        if value not in self._by_value:
            number = self._by_name.setdefault(self._name_of(value), len(self._by_name))
            self._by_value[value] = number
        return self._by_value[value]

    def number(self, name: str) -> int:
        """The number of that name."""
        return self._by_name.setdefault(name, len(self._by_name))

    def column(self, codes: npt.NDArray[np.int32]) -> pd.Categorical:
        """The column with these numbers."""
        names = pd.Index(list(self._by_name), dtype=object)
        return pd.Categorical.from_codes(codes, categories=names)


class Columns:
    """Columns of one length, as arrays that are filled from the front.

    Args:
        expected: room for that many rows. Room that is not used takes no memory, because the
            system gives memory only when it is written to.
    """

    def __init__(self, types: Mapping[str, str], expected: int) -> None:
        self._arrays = {name: np.zeros(expected, kind) for name, kind in types.items()}
        self._count, self._room = 0, expected

    def add(self, count: int) -> dict[str, npt.NDArray[Any]]:
        """That many more rows of each column, zero, to be written before the next call."""
        begin, self._count = self._count, self._count + count
        if self._count > self._room:
            more = max(self._room, count)
            self._room += more
            for name, array in self._arrays.items():
                self._arrays[name] = np.concatenate([array, np.zeros(more, array.dtype)])
        return {name: array[begin : self._count] for name, array in self._arrays.items()}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The columns as far as they are filled."""
        return {name: array[: self._count] for name, array in self._arrays.items()}


GPU_KINDS = (*KERNELS, COPY, PEER_COPY, FILL)
CALL_KINDS = (RUNTIME_CALL, DRIVER_CALL, INTERNAL_LAUNCH)

_LATEST_NS = 1 << 62
_THREAD = 2
"""CUPTI_ACTIVITY_OBJECT_THREAD."""
_CALLS = {kind: np.array(list(calls), np.int64) for kind, calls in CALLS.items()}


@dataclass(frozen=True)
class Part:
    """Records of one kind as columns."""

    kind: int
    columns: dict[str, npt.NDArray[Any]]  # by the name of the table's column
    names: Distinct  # what tells their names apart; of kernels also grid, block and shared memory
    timeless: int


def take_parts(records: Records) -> list[Part]:
    """The records that are read, kind by kind; of whole graphs only their number."""
    parts = []
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
        parts.append(Part(kind, columns, _names(kind, rows), count - len(rows)))
    if records.count(MARKER):
        parts.append(_markers(records.rows(MARKER)))
    if graphs := records.count(GRAPH):
        parts.append(Part(GRAPH, {}, distinct(np.zeros(graphs, np.int64)), 0))
    return parts


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


_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, as hashes often use
_SHAPE = "gridX_to_dynamicSharedMemory"
_WORDS = 4
_MOST_SHARED = (1 << 31) - 1


@dataclass(frozen=True)
class Distinct:
    """What tells some rows apart."""

    codes: npt.NDArray[np.int64]  # for each row which of the keys it has
    keys: list[int]
    rows: Any = None  # for each key a record that has it; None where the key says everything


def distinct(values: npt.NDArray[Any]) -> Distinct:
    """The different values."""
    codes, found = pd.factorize(values)
    return Distinct(codes, found.tolist())


def distinct_launches(rows: Any) -> Distinct:
    """The different launches among kernel records."""
    found = distinct(_mixed(rows))
    first = np.empty(len(found.keys), np.int64)
    first[found.codes[::-1]] = np.arange(len(rows) - 1, -1, -1)
    return replace(found, rows=rows[first])


class Launches:
    """The different launches seen so far.

    Attributes:
        grids: the different grids, as ``x,y,z``; number 0 is none.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.grids, self.blocks = Names(str), Names(str)
        self.grids.number("")
        self.blocks.number("")
        self._seen: dict[int, tuple[int, int, int, int]] = {}

    def describe(self, found: Distinct, into: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes name, grid, block and shared_bytes of these launches."""
        for key, row in zip(found.keys, found.rows, strict=True):
            if key not in self._seen:
                self._seen[key] = self._columns(row)
        values = np.array([self._seen[key] for key in found.keys], np.int32).reshape(-1, 4)
        for index, name in enumerate(("name", "grid", "block", "shared_bytes")):
            mine = np.ascontiguousarray(values[:, index])
            mine.take(found.codes, out=into[name], mode="clip")

    def _columns(self, row: Any) -> tuple[int, int, int, int]:
        shared = int(row["staticSharedMemory"]) + int(row["dynamicSharedMemory"])
        return (
            self._names.code(int(row["name"])),
            self.grids.number(f"{row['gridX']},{row['gridY']},{row['gridZ']}"),
            self.blocks.number(f"{row['blockX']},{row['blockY']},{row['blockZ']}"),
            max(min(shared, _MOST_SHARED), -_MOST_SHARED),
        )


def _mixed(rows: Any) -> npt.NDArray[np.uint64]:
    """One number a record out of the fields that tell launches apart.

    With a thousand different launches, two get the same with a probability of 3e-14.
    """
    shape = rows[_SHAPE]
    mixed: npt.NDArray[np.uint64] = rows["name"] * _FACTOR
    part = np.empty_like(mixed)
    for word in range(_WORDS):
        np.right_shift(mixed, np.uint64(29), out=part)
        mixed ^= part
        mixed ^= shape[:, word]
        mixed *= _FACTOR
    return mixed
