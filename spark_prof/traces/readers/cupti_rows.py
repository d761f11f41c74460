"""Turns CUPTI's activity records into rows of the bundle's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.cupti_blocks import Records
from spark_prof.traces.readers.cupti_launches import Launches
from spark_prof.traces.readers.cupti_names import (
    CALLS,
    call_name,
    copy_name,
    fill_name,
    overhead_name,
)
from spark_prof.traces.readers.cupti_records import (
    COPY,
    DRIVER_CALL,
    FILL,
    GRAPH,
    INTERNAL_LAUNCH,
    KERNELS,
    OVERHEAD,
    PEER_COPY,
    RUNTIME_CALL,
)
from spark_prof.traces.readers.growing import Columns, Names

__all__ = ["Rows"]

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
_KNOWN = {kind: np.array(list(calls), np.int64) for kind, calls in CALLS.items()}
_LATEST_NS = 1 << 62


class Rows:
    """The rows of one piece as they are read.

    Args:
        names: the kernel name at each address.
        offset_ns: what to add to CUPTI's clock.
        size: bytes of all records.
    """

    def __init__(self, names: Mapping[int, str], offset_ns: int, size: int) -> None:
        self._offset = offset_ns
        self._gpu = Columns(_GPU, size // _SHORTEST[0])
        self._calls = Columns(_CALL, size // _SHORTEST[1])
        self._overhead = Columns(_TIMES | {"name": "i4"}, size // _SHORTEST[2])
        self._names = Names(_gpu_name(names))
        self._launches = Launches(self._names)
        self._call_names = Names(lambda value: call_name(value >> 32, value & 0xFFFFFFFF))
        self._overhead_names = Names(overhead_name)
        self._timeless = self._graphs = 0

    def add(self, records: Records) -> None:
        """Adds the records of a buffer."""
        for kind in KERNELS:
            if records.count(kind):
                self._add_kernels(records.rows(kind))
        for kind in (COPY, PEER_COPY, FILL):
            if records.count(kind):
                self._add_moves(kind, records.rows(kind))
        for kind in (RUNTIME_CALL, DRIVER_CALL, INTERNAL_LAUNCH):
            if records.count(kind):
                self._add_calls(kind, records.rows(kind))
        if records.count(OVERHEAD):
            rows, into = self._timed(records.rows(OVERHEAD), self._overhead)
            into["name"][:] = self._overhead_names.codes(rows["overheadKind"])
        self._graphs += records.count(GRAPH)

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
            return frame
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
        nameless = (self._gpu.arrays()["name"] == self._names.code(0)).sum()
        if nameless:
            lost.append(f"{nameless} kernels have no name")
        return lost

    def _timed(self, rows: Any, columns: Columns) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        """The records that have a time, and as many new rows with those times."""
        start, end = (rows[name].astype(np.int64) for name in ("start", "end"))
        good = (start > 0) & (start <= end) & (end < _LATEST_NS)
        if not good.all():
            self._timeless += len(rows) - int(good.sum())
            rows, start, end = rows[good], start[good], end[good]
        into = columns.add(len(rows))
        np.add(start, self._offset, out=into["start_ns"])
        np.add(end, self._offset, out=into["end_ns"])
        return rows, into

    def _placed(self, rows: Any) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        """As `_timed` for work on a GPU, with where it ran and what started it."""
        rows, into = self._timed(rows, self._gpu)
        into["device"][:] = rows["deviceId"].view(np.int32)
        into["stream"][:] = rows["streamId"]
        into["correlation"][:] = rows["correlationId"]
        into["graph_node"][:] = rows["graphNodeId"].view(np.int64)
        return rows, into

    def _add_kernels(self, rows: Any) -> None:
        rows, into = self._placed(rows)
        into["registers"][:] = rows["registersPerThread"]
        self._launches.describe(rows, into)

    def _add_moves(self, kind: int, rows: Any) -> None:
        rows, into = self._placed(rows)
        into["bytes"][:] = rows["bytes"].view(np.int64)
        into["kind"][:] = 2 if kind == FILL else 1
        if kind == FILL:
            value = rows["memoryKind"].astype(np.int64)
        else:
            value = sum(
                rows[name].astype(np.int64) << shift
                for name, shift in (("copyKind", 16), ("srcKind", 8), ("dstKind", 0))
            )
        # Never the address of a name, which is positive.
        into["name"][:] = self._names.codes(-(value | kind << 32))

    def _add_calls(self, kind: int, rows: Any) -> None:
        rows, into = self._timed(rows, self._calls)
        number = rows["cbid"].astype(np.int64) if kind in CALLS else np.zeros(len(rows), np.int64)
        into["name"][:] = self._call_names.codes(number | kind << 32)
        into["known"][:] = kind not in CALLS or np.isin(number, _KNOWN[kind])
        into["thread"][:] = rows["threadId"]
        into["correlation"][:] = rows["correlationId"]


def _gpu_name(names: Mapping[int, str]) -> Any:
    def name_of(value: int) -> str:
        if value >= 0:
            return names.get(value, "")
        kind, value = -value >> 32, -value & 0xFFFFFFFF
        if kind == FILL:
            return fill_name(value)
        return copy_name(kind, value >> 16, value >> 8 & 0xFF, value & 0xFF)

    return name_of
