"""Puts NVTX ranges together: CUPTI writes one record where a range begins and one where it ends.

Both have the same id, but only the first has the name; see CUpti_ActivityMarker2 in
cupti_activity.h. A mark is one record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.cupti_parts import Part
from spark_prof.traces.readers.growing import Columns, Names

_INSTANT, _BEGIN, _END = 1, 2, 4
"""CUPTI_ACTIVITY_FLAG_MARKER_*; the flags of synchronization objects are passed over."""

_TYPES = {"time": "i8", "id": "i8", "flags": "u4", "thread": "i8", "name": "i4", "domain": "i4"}
_RECORD_BYTES = 56


class Markers:
    """The NVTX markers of one piece as they are read.

    Args:
        names: the name or domain at each address.
        offset_ns: what to add to CUPTI's clock.
        size: bytes of all records.
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
