"""Reads one piece that the CUPTI backend recorded: raw activity buffers and a file of names.

Format: docs/bundle.md. A record points to its kernel's name in the memory of a process that is
gone, so the names lie beside the buffers. Times are CUPTI's clock plus the offset noted there. Of
an NVTX range one record says where it begins, another where it ends.

`take_parts` does for one buffer what can be done for it alone, in a thread of its own. Launches
that are alike share name, grid, block and shared memory, which are looked up once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.traces.foreign import Trace
from spark_prof.traces.readers.cupti_blocks import Records, map_records
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
    call_name,
    copy_name,
    fill_name,
    overhead_name,
)


class Names:
    """A categorical column's names, numbered as they come."""

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
_THREAD = 2  # CUPTI_ACTIVITY_OBJECT_THREAD
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
        found = distinct(_mixed(rows))
        first = np.empty(len(found.keys), np.int64)
        first[found.codes[::-1]] = np.arange(len(rows) - 1, -1, -1)
        return replace(found, rows=rows[first])
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

    codes: Int64s  # for each row which of the keys it has
    keys: list[int]
    rows: Any = None  # for each key a record that has it; None where the key says everything


def distinct(values: npt.NDArray[Any]) -> Distinct:
    """The different values."""
    codes, found = pd.factorize(values)
    return Distinct(codes, found.tolist())


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


_INSTANT, _BEGIN, _END = 1, 2, 4
"""CUPTI_ACTIVITY_FLAG_MARKER_*; the flags of synchronization objects are passed over."""

_TYPES = {"time": "i8", "id": "i8", "flags": "u4", "thread": "i8", "name": "i4", "domain": "i4"}
_RECORD_BYTES = 56


class Markers:
    """The NVTX markers of one piece as they are read."""

    def __init__(self, names: Mapping[int, str], offset_ns: int, size: int) -> None:
        self._known, self._offset = names.keys() | {0}, offset_ns
        self._records = Columns(_TYPES, size // _RECORD_BYTES)
        self._names = Names(lambda pointer: names.get(pointer, ""))
        self._domains = Names(lambda pointer: names.get(pointer, ""))
        self._nameless = self._open = self._ended = 0

    def add(self, part: Part) -> None:
        """Adds the markers of one buffer; ends of ranges have neither name nor domain."""
        into = self._records.add(len(part.columns["time"]))
        for column in ("time", "id", "flags", "thread"):
            into[column][:] = part.columns[column]
        codes = np.array([self._names.code(key) for key in part.names.keys], np.int32)
        into["name"][:] = codes[part.names.codes]
        unknown = np.array([key not in self._known for key in part.names.keys], bool)
        self._nameless += int(unknown[part.names.codes].sum())
        domains, which = np.unique(part.columns["domain"], return_inverse=True)
        into["domain"][:] = np.array([self._domains.code(d) for d in domains.tolist()])[which]

    def frame(self) -> pd.DataFrame:
        """The ranges, and the marks as ranges of no length, as `Trace.markers`."""
        found = self._records.arrays()
        begins, ends = self._pairs(found)
        marks = np.flatnonzero(found["flags"] & _INSTANT)
        begins, ends = np.append(begins, marks), np.append(ends, marks)
        start = found["time"][begins] + self._offset
        order = np.argsort(start, kind="stable")
        begins = begins[order]
        return pd.DataFrame(
            {
                "name": self._names.column(found["name"][begins]),
                "domain": self._domains.column(found["domain"][begins]),
                "start_ns": start[order],
                "end_ns": found["time"][ends[order]] + self._offset,
                "thread": found["thread"][begins],
            }
        )

    def lost(self) -> list[str]:
        """What the markers lack, one line each; after `frame`."""
        lost = []
        if self._open or self._ended:
            lost.append(
                f"{self._open} NVTX ranges ended after this piece and {self._ended} began before "
                "it; they were left out"
            )
        if self._nameless:
            lost.append(f"{self._nameless} NVTX markers have no name")
        return lost

    def _pairs(self, found: Mapping[str, npt.NDArray[Any]]) -> tuple[Any, Any]:
        """Where the ranges begin and end: an end follows its begin among the records of its id."""
        flags = found["flags"] & (_BEGIN | _END)
        rows = np.flatnonzero((flags == _BEGIN) | (flags == _END))
        rows = rows[np.lexsort((flags[rows], found["time"][rows], found["id"][rows]))]
        begins, number = flags[rows] == _BEGIN, found["id"][rows]
        whole = np.flatnonzero(begins[:-1] & ~begins[1:] & (number[:-1] == number[1:]))
        self._open = int(begins.sum()) - len(whole)
        self._ended = int((~begins).sum()) - len(whole)
        return rows[whole], rows[whole + 1]


_TIMES = {"start_ns": "i8", "end_ns": "i8"}
_GPU = _TIMES | {
    "name": "i4", "kind": "i1", "device": "i4", "stream": "i8", "correlation": "i8",
    "graph_node": "i8", "grid": "i4", "block": "i4", "registers": "i4", "shared_bytes": "i4",
    "bytes": "i8",
}  # fmt: skip
_CALL = _TIMES | {"name": "i4", "thread": "i8", "correlation": "i8", "known": "?"}
_SHORTEST = (88, 40, 56)
"""Bytes of the shortest record about work on a GPU, of a call and of overhead."""
_KINDS = pd.Index(["kernel", "memcpy", "memset"])


class Rows:
    """The rows of one piece as they are read."""

    def __init__(
        self,
        names: Mapping[int, str],
        marker_names: Mapping[int, str],
        offset_ns: int,
        size: int,
    ) -> None:
        self._offset = offset_ns
        self._gpu = Columns(_GPU, size // _SHORTEST[0])
        self._calls = Columns(_CALL, size // _SHORTEST[1])
        self._overhead = Columns(_TIMES | {"name": "i4"}, size // _SHORTEST[2])
        self._names = Names(lambda pointer: names.get(pointer, ""))
        # The different grids and blocks, as `x,y,z`; number 0 is none.
        self._grids, self._blocks = Names(str), Names(str)
        self._grids.number("")
        self._blocks.number("")
        self._launches: dict[int, tuple[int, int, int, int]] = {}
        self._call_names, self._overhead_names = Names(str), Names(str)
        self.markers = Markers(marker_names, offset_ns, size)
        self._timeless = self._graphs = 0

    def add(self, part: Part) -> None:
        """Adds some records of one kind."""
        self._timeless += part.timeless
        if part.kind == GRAPH:
            self._graphs += len(part.names.codes)
            return
        if part.kind == MARKER:
            self.markers.add(part)
            return
        kind = part.kind
        if kind in KERNELS:
            self._describe(part.names, self._added(part, self._gpu))
        elif kind in GPU_KINDS:
            into = self._added(part, self._gpu)
            into["kind"][:] = 2 if kind == FILL else 1
            _write_names(part.names, self._names, lambda key: _move_name(kind, key), into)
        elif kind in CALL_KINDS:
            into = self._added(part, self._calls)
            _write_names(part.names, self._call_names, lambda key: call_name(kind, key), into)
        else:
            into = self._added(part, self._overhead)
            _write_names(part.names, self._overhead_names, overhead_name, into)

    def gpu(self) -> pd.DataFrame:
        """Kernels, copies and memsets, as `Trace.gpu`."""
        columns: dict[str, Any] = self._gpu.arrays()
        columns["name"] = self._names.column(columns["name"])
        columns["kind"] = pd.Categorical.from_codes(columns["kind"], categories=_KINDS)
        columns["grid"] = self._grids.column(columns["grid"])
        columns["block"] = self._blocks.column(columns["block"])
        nothing = np.zeros(len(columns["name"]), np.int8)
        columns["cubin"] = pd.Categorical.from_codes(nothing, categories=pd.Index([""]))
        return pd.DataFrame(columns, copy=False)

    def launches(self) -> pd.DataFrame:
        """The calls that started work, an outer call before those inside it, as `Trace.launches`.

        Some libraries record all calls; one that is not known to start work stays if it did.
        """
        columns: dict[str, Any] = self._calls.arrays()
        known = columns.pop("known")
        columns["name"] = self._call_names.column(columns["name"])
        frame = pd.DataFrame(columns, copy=False)
        if not known.all():
            started = pd.unique(self._gpu.arrays()["correlation"])
            frame = frame[known | frame["correlation"].isin(started)]
        if frame["start_ns"].is_monotonic_increasing:
            return frame.reset_index(drop=True)
        return frame.sort_values("start_ns", kind="stable", ignore_index=True)

    def overhead(self) -> pd.DataFrame:
        """What CUPTI itself took, as `Trace.overhead`."""
        columns: dict[str, Any] = self._overhead.arrays()
        return pd.DataFrame(columns | {"name": self._overhead_names.column(columns["name"])})

    def lost(self) -> list[str]:
        """What the records lack, one line each."""
        lost = []
        if self._timeless:
            lost.append(f"{self._timeless} records have no time and were left out")
        if self._graphs:
            lost.append(f"{self._graphs} CUDA graphs were recorded whole, without their kernels")
        nameless = (self._gpu.arrays()["name"] == self._names.number("")).sum()
        if nameless:
            lost.append(f"{nameless} kernels have no name")
        return lost + self.markers.lost()

    def _describe(self, found: Distinct, into: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes name, grid, block and shared_bytes of these launches."""
        for key, row in zip(found.keys, found.rows, strict=True):
            if key not in self._launches:
                shared = int(row["staticSharedMemory"]) + int(row["dynamicSharedMemory"])
                self._launches[key] = (
                    self._names.code(int(row["name"])),
                    self._grids.number(f"{row['gridX']},{row['gridY']},{row['gridZ']}"),
                    self._blocks.number(f"{row['blockX']},{row['blockY']},{row['blockZ']}"),
                    max(min(shared, _MOST_SHARED), -_MOST_SHARED),
                )
        values = np.array([self._launches[key] for key in found.keys], np.int32).reshape(-1, 4)
        for index, name in enumerate(("name", "grid", "block", "shared_bytes")):
            mine = np.ascontiguousarray(values[:, index])
            mine.take(found.codes, out=into[name], mode="clip")

    def _added(self, part: Part, columns: Columns) -> dict[str, npt.NDArray[Any]]:
        """New rows for the part, with all but its names."""
        into = columns.add(len(part.columns["start_ns"]))
        for name, values in part.columns.items():
            if name in _TIMES:
                np.add(values, self._offset, out=into[name])
            else:
                into[name][:] = values
        return into


def _write_names(
    found: Distinct, names: Names, name_of: Any, into: Mapping[str, npt.NDArray[Any]]
) -> None:
    numbers = np.array([names.number(name_of(key)) for key in found.keys], np.int32)
    into["name"][:] = numbers[found.codes]


def _move_name(kind: int, key: int) -> str:
    if kind == FILL:
        return fill_name(key)
    return copy_name(kind, key >> 16, key >> 8 & 0xFF, key & 0xFF)


def read_cupti(path: Path, names: Path) -> Trace:
    """Reads one piece, as far as it was written."""
    lost: list[str] = []
    rows = Rows(*_read_names(names, lost), path.stat().st_size if path.is_file() else 0)
    for parts in map_records(path, lost, take_parts):
        for part in parts:
            rows.add(part)
    return Trace(
        gpu=rows.gpu(),
        launches=rows.launches(),
        overhead=rows.overhead(),
        markers=rows.markers.frame(),
        lost=(*lost, *rows.lost()),
    )


def _read_names(path: Path, lost: list[str]) -> tuple[dict[int, str], dict[int, str], int]:
    """The kernel name and the marker name at each address, and what to add to a time."""
    try:
        document = orjson.loads(path.read_bytes())
        names, markers = (
            {int(pointer): str(name) for pointer, name in found.items()}
            for found in (document["names"], document.get("markers", {}))
        )
        offset = int(document["clock_offset_ns"])
        if abs(offset) >= _LATEST_NS:
            raise ValueError("its clock offset is none")
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        lost.append(f"{path.name} cannot be used ({reason}): kernels lack names and exact times")
        return {}, {}, 0
    return names, markers, offset
