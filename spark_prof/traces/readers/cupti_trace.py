"""Reads one piece that the CUPTI backend recorded: raw activity buffers and a file of names.

Format: docs/bundle.md. A record points to its kernel's name in the memory of a process that is
gone, so the names lie beside the buffers. Times are CUPTI's clock plus the offset noted there. Of
an NVTX range one record says where it begins, another where it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd

from spark_prof.traces.foreign import Trace
from spark_prof.traces.readers.cupti_blocks import map_records
from spark_prof.traces.readers.cupti_parts import (
    CALL_KINDS,
    GPU_KINDS,
    Columns,
    Distinct,
    Launches,
    Names,
    Part,
    take_parts,
)
from spark_prof.traces.readers.cupti_records import (
    FILL,
    GRAPH,
    KERNELS,
    MARKER,
    call_name,
    copy_name,
    fill_name,
    overhead_name,
)

_INSTANT, _BEGIN, _END = 1, 2, 4
"""CUPTI_ACTIVITY_FLAG_MARKER_*; the flags of synchronization objects are passed over."""

_TYPES = {"time": "i8", "id": "i8", "flags": "u4", "thread": "i8", "name": "i4", "domain": "i4"}
_RECORD_BYTES = 56


class Markers:
    """The NVTX markers of one piece as they are read.

    Args:
        names: the name or domain at each address.
        offset_ns: what to add to CUPTI's clock.
    """

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
    """The rows of one piece as they are read.

    Args:
        names: the kernel name at each address.
        offset_ns: what to add to CUPTI's clock.
    """

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
        self._launches = Launches(self._names)
        self._call_names, self._overhead_names = Names(str), Names(str)
        self._markers = Markers(marker_names, offset_ns, size)
        self._timeless = self._graphs = 0

    def add(self, part: Part) -> None:
        """Adds some records of one kind."""
        self._timeless += part.timeless
        if part.kind == GRAPH:
            self._graphs += len(part.names.codes)
            return
        if part.kind == MARKER:
            self._markers.add(part)
            return
        kind = part.kind
        if kind in KERNELS:
            self._launches.describe(part.names, self._added(part, self._gpu))
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
        columns["grid"] = self._launches.grids.column(columns["grid"])
        columns["block"] = self._launches.blocks.column(columns["block"])
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

    def markers(self) -> pd.DataFrame:
        """NVTX ranges and marks, as `Trace.markers`."""
        return self._markers.frame()

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
        return lost + self._markers.lost()

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


_LATEST_NS = 1 << 62


def read_cupti(path: Path, names: Path) -> Trace:
    """Reads one piece, as far as it was written.

    Args:
        names: JSON with `names` and `markers`, names by their address, and `clock_offset_ns`.

    Raises:
        CommandError: the buffers cannot be read, or it is not known how their records look.
    """
    lost: list[str] = []
    rows = Rows(*_read_names(names, lost), path.stat().st_size if path.is_file() else 0)
    for parts in map_records(path, lost, take_parts):
        for part in parts:
            rows.add(part)
    return Trace(
        gpu=rows.gpu(),
        launches=rows.launches(),
        overhead=rows.overhead(),
        markers=rows.markers(),
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
