"""Puts the parts of a piece together: rows of the bundle's tables out of CUPTI's records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.cupti_launches import Distinct, Launches
from spark_prof.traces.readers.cupti_markers import Markers
from spark_prof.traces.readers.cupti_names import call_name, copy_name, fill_name, overhead_name
from spark_prof.traces.readers.cupti_parts import CALL_KINDS, GPU_KINDS, Part
from spark_prof.traces.readers.cupti_records import FILL, GRAPH, KERNELS, MARKER
from spark_prof.traces.readers.growing import Columns, Names

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
        marker_names: the name or domain of NVTX markers at each address.
        offset_ns: what to add to CUPTI's clock.
        size: bytes of all records.
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
