"""Reads what one process did on the GPU from an SQLite export of Nsight Systems.

The tables and what their numbers mean: NVIDIA's "Nsight Systems Exporter", SQLite schema, and the
ENUM tables of real exports of versions 2022.4 to 2026.2. A kernel and the API call that launched it
share a correlation number, which counts anew in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.foreign import Trace
from spark_prof.traces.readers.nsys_clock import Clock, read_clock
from spark_prof.traces.readers.nsys_file import (
    ID_MASK,
    OVERHEADS,
    PROCESS_SHIFT,
    RUNTIME,
    NsysFile,
    open_export,
)
from spark_prof.traces.readers.nsys_work import GPU_COLUMNS, WHOLE_GRAPH, work_frame
from spark_prof.traces.tables import empty_frame

Int64s = npt.NDArray[np.int64]

_QUEUE_NS = 5_000_000_000
"""Work starts on the GPU at most this long after its launch."""

_ROUNDING_NS = 1_000_000
_LATEST_NS = 1 << 60
"""Times beyond this, in ns since the session's start, are damage."""

_UNMATCHED = 0.1
"""Above this share of launches without work on the GPU, the report is not whole."""

_LAUNCHES = ("launch", "memcpy", "memset")
_TEXTS = ("name", "kind", "grid", "block", "cubin")


def nsys_trace(path: Path, pid: int, start_ns: int, end_ns: int) -> Trace:
    """Reads what a process launched between two moments, whenever the GPU then ran it.

    Args:
        path: the export.
        pid: the process.
        start_ns: first moment, ns since the epoch.
        end_ns: last moment.

    Raises:
        CommandError: it is no whole export, or does not say when its session started.
    """
    with open_export(path) as export:
        clock = read_clock(export)
        window = _Window(export, clock, pid, start_ns, end_ns)
        launches = window.launches()
        frames = [frame for frame in window.gpu(launches["correlation"]) if len(frame)]
        gpu = pd.concat(frames or [_no_work()]).astype(dict.fromkeys(_TEXTS, object))
        return _trace(window, gpu, launches, window.launched_before(gpu["correlation"]))


class _Window:
    """One process in one stretch of an export."""

    def __init__(
        self, export: NsysFile, clock: Clock, pid: int, start_ns: int, end_ns: int
    ) -> None:
        self._export, self._clock, self._pid = export, clock, pid
        self.start_ns, self.end_ns = start_ns, end_ns
        self._launched = (0, -1)
        self._first = clock.from_epoch(start_ns) - _ROUNDING_NS
        self._last = clock.from_epoch(end_ns) + _ROUNDING_NS

    def launches(self) -> pd.DataFrame:
        """The API calls of the window."""
        wanted = {"start": 0, "end": 0, "globalTid": -1, "correlationId": -1, "nameId": -1}
        rows = self._read(RUNTIME, wanted, "globalTid", self._first, self._last)
        frame = pd.DataFrame(
            {
                "name": self._export.names(rows["nameId"]),
                "start_ns": self._clock.to_epoch(rows["start"]),
                "end_ns": self._clock.to_epoch(rows["end"]),
                "thread": rows["globalTid"] & ID_MASK,
                "correlation": rows["correlationId"],
            }
        )
        inside = frame["start_ns"].between(self.start_ns, self.end_ns)
        return frame[inside].reset_index(drop=True)

    def launched_before(self, correlations: pd.Series) -> Int64s:
        """Correlations of API calls before the window, as far as its work may be theirs."""
        found = correlations[correlations >= 0]
        if found.empty:
            return np.empty(0, np.int64)
        among = (int(found.min()), int(found.max()))
        first, last = self._first - _QUEUE_NS, self._first + _ROUNDING_NS
        wanted = {"start": 0, "correlationId": -1}
        rows = self._read(
            RUNTIME, wanted, "globalTid", first, last, "correlationId BETWEEN ? AND ?", among
        )
        before = self._clock.to_epoch(rows["start"]) < self.start_ns
        return rows["correlationId"][before]

    def gpu(self, launched: pd.Series) -> list[pd.DataFrame]:
        """What ran in the window, or a while after it but launched in it; a frame per table."""
        self._launched = (int(launched.min()), int(launched.max())) if len(launched) else (0, -1)
        return [
            work_frame(table, self._work(table), self._clock, self._export.categories)
            for table in GPU_COLUMNS
        ]

    def overhead(self) -> pd.DataFrame:
        """What the profiler itself cost meanwhile, in this process."""
        for table in OVERHEADS:
            if not self._export.has(table, "start", "end", "nameId", "globalTid"):
                continue
            wanted = {"start": 0, "end": 0, "nameId": -1}
            rows = self._read(table, wanted, "globalTid", self._first, self._last)
            if len(rows["start"]):
                return pd.DataFrame(
                    {
                        "name": self._export.names(rows["nameId"]),
                        "start_ns": self._clock.to_epoch(rows["start"]),
                        "end_ns": self._clock.to_epoch(rows["end"]),
                    }
                )
        return empty_frame("overhead")

    def _work(self, table: str) -> dict[str, Int64s]:
        return self._read(
            table, GPU_COLUMNS[table], "globalPid", self._first, self._last + _QUEUE_NS,
            "(start <= ? OR correlationId BETWEEN ? AND ?)", (self._last, *self._launched),
        )  # fmt: skip

    def _read(
        self,
        table: str,
        wanted: Mapping[str, int],
        owner: str,
        first: int,
        last: int,
        condition: str = "1",
        values: tuple[int, ...] = (),
    ) -> dict[str, Int64s]:
        needed = ("start", "end", owner, *(["correlationId"] if values else []))
        if not self._export.has(table, *needed):
            return {name: np.empty(0, np.int64) for name in wanted}
        where = (
            f"start BETWEEN ? AND ? AND end BETWEEN start AND ? "
            f"AND ({owner} >> {PROCESS_SHIFT}) & {ID_MASK} = ? AND {condition}"
        )
        given = (first, last, _LATEST_NS, self._pid, *values)
        return self._export.integers(table, wanted, where, given)


def _trace(window: _Window, gpu: pd.DataFrame, launches: pd.DataFrame, before: Int64s) -> Trace:
    """Keeps what was launched inside the window, and says what that lacks."""
    ran = gpu["correlation"].isin(launches["correlation"])
    # Work whose launch is not in the report counts by when it ran.
    unknown = ~ran & ~gpu["correlation"].isin(before)
    unknown &= gpu["start_ns"].between(window.start_ns, window.end_ns)
    gpu = gpu[ran | unknown].reset_index(drop=True)
    named = launches["name"].str.lower().str.contains("|".join(_LAUNCHES))
    started = launches["correlation"].isin(gpu["correlation"])
    return Trace(
        gpu=gpu,
        launches=launches[named | started].reset_index(drop=True),
        operators=empty_frame("overhead").assign(part=0, thread=0),
        overhead=window.overhead(),
        lost=_lost(gpu, launches[named], int(unknown.sum())),
    )


def _lost(gpu: pd.DataFrame, launches: pd.DataFrame, unknown: int) -> tuple[str, ...]:
    lost = []
    graphs = int((gpu["name"] == WHOLE_GRAPH).sum())
    if graphs:
        lost.append(
            f"{graphs} CUDA graph launches were traced as a whole: the kernels inside them, with "
            "their names, layers and components, are missing; trace with --cuda-graph-trace=node"
        )
    idle = int((~launches["correlation"].isin(gpu["correlation"])).sum())
    if idle > _UNMATCHED * len(launches):
        lost.append(
            f"{idle} of {len(launches)} launches have no kernel in the nsys report; an nsys that "
            "is older than the driver misses kernels, take the one of your CUDA toolkit or a newer"
        )
    if unknown:
        lost.append(f"{unknown} kernels and copies have no launch in the nsys report, so no step")
    return tuple(lost)


def _no_work() -> pd.DataFrame:
    frame = empty_frame("kernels").drop(columns=["part", "step", "module", "layer"])
    numbers = ("start_ns", "end_ns", "device", "stream", "correlation", "graph_node", "bytes")
    return frame.astype(dict.fromkeys((*numbers, "registers", "shared_bytes"), np.int64))
