"""Opens an SQLite export of Nsight Systems and hands out its columns.

Which tables and columns an export has depends on the version that wrote it, on what was traced
and on what happened meanwhile: everything is asked for by name, and what is absent has a default.
Format: NVIDIA's "Nsight Systems Exporter", SQLite schema; process and thread are packed into one
number, with the process in bits 24 to 47 and the thread in the lower 24.

An export counts from the start of its session, of which it knows the moment. Its clock is not the
one that `time.time_ns` reads, and over minutes they drift apart by more than a kernel lasts. So
spark-prof's workers leave marks that name the time, and what lies between two is interpolated.

What the numbers of work on the GPU mean: the ENUM tables of real exports of versions 2022.4 to
2026.2.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.chunks import CLOCK_MARK
from spark_prof.traces.foreign import category, gpu_frame, together, triples

ID_MASK = 0xFFFFFF  # the bits of a process or thread id

PROCESS_SHIFT = 24  # where the process id begins in a global id

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
"""What the profiler cost; the first that has rows says it."""

_CHUNK = 1 << 16
_SOME_IDS = 500
_LONGEST_NAME = 1 << 16
_LONGEST_TEXT = 1 << 12
_LONGEST_ERROR = 200


class NsysFile:
    """An open export: its tables, and their columns as arrays."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        self._columns = {
            name: [row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})")]
            for name in [str(row[0]) for row in rows]
        }

    def columns(self, table: str) -> Sequence[str]:
        """The table's columns; none where there is no such table."""
        return self._columns.get(table, ())

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with these columns."""
        return table in self._columns and set(columns) <= set(self._columns[table])

    def rows(self, sql: str, values: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        """The rows of a query, one after another."""
        yield from self._connection.execute(sql, values)

    def integers(
        self,
        table: str,
        defaults: Mapping[str, int],
        where: str = "1",
        values: Sequence[object] = (),
    ) -> dict[str, Int64s]:
        """Reads integer columns; `defaults` has what stands for NULL, and for an absent column."""
        cursor = self._connection.execute(
            f"SELECT {self.selected(table, defaults)} FROM {_quoted(table)} WHERE {where}", values
        )
        chunks = [np.empty((0, len(defaults)), np.int64)]
        while rows := cursor.fetchmany(_CHUNK):
            chunks.append(np.array(rows, np.int64))
        return dict(zip(defaults, np.concatenate(chunks).T, strict=True))

    def selected(self, table: str, defaults: Mapping[str, int]) -> str:
        """SQL for integer columns of a table, with what stands for NULL and for absent ones."""
        present = self.columns(table)
        return ", ".join(
            f"CAST(COALESCE({_quoted(name)}, {default}) AS INTEGER) AS {_quoted(name)}"
            if name in present
            else f"{default} AS {_quoted(name)}"
            for name, default in defaults.items()
        )

    def event_text(self) -> tuple[str, str]:
        """SQL for the text of an NVTX event `n`, itself or by its number, and the join it needs."""
        text, join = "n.text", ""
        if self.has("NVTX_EVENTS", "textId") and self.has("StringIds", "id", "value"):
            text, join = "COALESCE(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"
        return f"substr(CAST({text} AS TEXT), 1, {_LONGEST_TEXT})", join

    def count(self, table: str, where: str = "1", values: Sequence[object] = ()) -> int:
        """How many rows of a table fit; 0 where it is absent."""
        if table not in self._columns:
            return 0
        sql = f"SELECT count(*) FROM {_quoted(table)} WHERE {where}"
        return int(next(iter(self._connection.execute(sql, values)))[0])

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """The texts of these numbers in the table of strings."""
        numbers = sorted(set(ids))
        texts: dict[int, str] = {}
        if not self.has("StringIds", "id", "value"):
            return texts
        for first in range(0, len(numbers), _SOME_IDS):
            some = numbers[first : first + _SOME_IDS]
            marks = ",".join("?" * len(some))
            sql = (
                f"SELECT id, substr(CAST(value AS TEXT), 1, {_LONGEST_NAME}) FROM StringIds "
                f"WHERE id IN ({marks})"
            )
            texts.update({int(number): str(text) for number, text in self.rows(sql, some)})  # type: ignore[call-overload]
        return texts

    def categories(self, ids: Int64s) -> pd.Categorical:
        """The text of each number as a category; empty where there is none."""
        codes, unique = pd.factorize(ids)
        numbers = [int(number) for number in unique]
        texts = self.strings(numbers)
        return category(codes, [texts.get(number, "") for number in numbers])


@contextmanager
def open_export(path: Path) -> Iterator[NsysFile]:
    """Opens an export for reading only."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise CommandError(f"cannot open {path}: {error}") from error
    try:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        yield NsysFile(connection, path)
    except (sqlite3.Error, OverflowError, ValueError, TypeError) as error:
        # SQLite may quote a whole table's definition.
        why = " ".join(str(error).split())[:_LONGEST_ERROR]
        raise CommandError(f"{path} is no whole Nsight Systems export ({why})") from error
    finally:
        connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


MARK = 34  # NVTX_EVENTS.eventType of a mark

_BURST_NS = 10_000_000  # marks closer together than this measure one offset

_LATEST_NS = 1 << 62


@dataclass(frozen=True)
class Clock:
    """Offsets between an export's time and the epoch's."""

    times: Int64s  # moments in the export's time at which the offset was measured, ascending
    offsets: Int64s  # ns to add then
    marked: bool  # whether marks measured it; else it is the session's start alone

    def to_epoch(self, times: Int64s) -> Int64s:
        """Times of the export as ns since the epoch."""
        # Differences keep every nanosecond; the offsets themselves are too large for a float.
        base = int(self.offsets[0])
        if len(self.offsets) == 1:
            return times + base
        moved = np.interp(times, self.times, (self.offsets - base).astype(np.float64))
        return times + (base + np.rint(moved).astype(np.int64))


def read_clock(export: NsysFile) -> Clock:
    """Reads the marks, else the session's start."""
    times, offsets = _marks(export)
    if len(times):
        return Clock(times, offsets, marked=True)
    clock = session_clock(export)
    if clock is None:
        raise CommandError(
            f"{export.path} does not say when its session started, so that its kernels cannot be "
            "put into steps; export the report again with a newer nsys"
        )
    return clock


def session_clock(export: NsysFile) -> Clock | None:
    """The clock by the session's start alone; None if the export does not say when that was."""
    if not export.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return None
    start = export.integers("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0})["utcEpochNs"]
    if len(start) != 1 or not 0 < start[0] < _LATEST_NS:
        return None
    return Clock(np.zeros(1, np.int64), start, marked=False)


def _marks(export: NsysFile) -> tuple[Int64s, Int64s]:
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    if not export.has("NVTX_EVENTS", "start", "eventType", "text"):
        return nothing
    text, join = export.event_text()
    sql = (
        f"SELECT n.start, {text} FROM NVTX_EVENTS n {join} "
        f"WHERE n.eventType = {MARK} AND {text} LIKE ? ORDER BY n.start"
    )
    pairs = []
    for start, value in export.rows(sql, (f"{CLOCK_MARK}%",)):
        named = str(value).removeprefix(CLOCK_MARK)
        if isinstance(start, int) and named.isdecimal() and int(named) < _LATEST_NS:
            pairs.append((start, int(named) - start))
    if not pairs:
        return nothing
    times, offsets = np.array(pairs, np.int64).T
    # A mark comes a little after the time that it names: of a burst, the soonest is right.
    burst = np.flatnonzero(np.diff(times, prepend=times[0] - 2 * _BURST_NS) > _BURST_NS)
    best = [
        part.argmax() + first
        for part, first in zip(np.split(offsets, burst[1:]), burst, strict=True)
    ]
    return times[best], offsets[best]


Naming = Callable[[Int64s], pd.Categorical]  # gives the texts of numbers in the table of strings

WHOLE_GRAPH = "CUDA graph (its kernels were not traced)"
"""The row of a graph launch that nsys traced as a whole."""

_COPIES = (
    "", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    "Unified HtoD", "Unified DtoH", "Unified DtoD",
)  # fmt: skip
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")

_PLACE = {
    "start": 0, "end": 0, "deviceId": 0, "streamId": 0, "correlationId": -1,
    "graphNodeId": 0,
}  # fmt: skip
_GEOMETRY = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 0)
GPU_COLUMNS: Mapping[str, Mapping[str, int]] = {
    KERNEL: _PLACE | _GEOMETRY | {
        "demangledName": -1, "shortName": -1, "registersPerThread": 0, "staticSharedMemory": 0,
        "dynamicSharedMemory": 0,
    },
    MEMCPY: _PLACE | {"bytes": 0, "copyKind": 0, "srcKind": -1, "dstKind": -1},
    MEMSET: _PLACE | {"bytes": 0, "memKind": -1},
    GRAPH: _PLACE,
}  # fmt: skip
"""The columns to read of each table of work, with what stands for NULL and for absent ones."""


def work_frame(
    table: str, rows: Mapping[str, Int64s], clock: Clock, naming: Naming
) -> pd.DataFrame:
    """Rows of one table of GPU_COLUMNS as Trace.gpu; the texts are categories."""
    place = {
        "start_ns": clock.to_epoch(rows["start"]),
        "end_ns": clock.to_epoch(rows["end"]),
        "device": _small(rows["deviceId"], -1),
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
        "graph_node": rows["graphNodeId"],
    }
    if table == MEMCPY:
        return gpu_frame(name=_copy_names(rows), kind="memcpy", bytes=rows["bytes"], **place)
    if table == MEMSET:
        codes, kinds = together([rows["memKind"]])
        names = [f"Memset ({_word(_MEMORY, kind) or 'Unknown'})" for (kind,) in kinds]
        name = category(codes, names)
        return gpu_frame(name=name, kind="memset", bytes=rows["bytes"], **place)
    if table == GRAPH:
        return gpu_frame(name=WHOLE_GRAPH, kind="kernel", **place)
    # A demangled name says which instance of a template ran; the short name is its last word.
    named = np.where(rows["demangledName"] >= 0, rows["demangledName"], rows["shortName"])
    return gpu_frame(
        name=naming(named),
        kind="kernel",
        grid=triples(rows, "grid"),
        block=triples(rows, "block"),
        registers=_small(rows["registersPerThread"], 0),
        shared_bytes=_small(
            _small(rows["staticSharedMemory"], 0) + _small(rows["dynamicSharedMemory"], 0), 0
        ),
        **place,
    )


def _small(values: Int64s, unknown: int) -> Int64s:
    """Numbers as 32 bits hold them."""
    return np.where((values >= 0) & (values < 1 << 31), values, unknown)


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else ""


def _copy_names(rows: Mapping[str, Int64s]) -> pd.Categorical:
    """Copies named as PyTorch's profiler names them, such as Memcpy HtoD (Pinned -> Device)."""
    codes, kinds = together([rows[name] for name in ("copyKind", "srcKind", "dstKind")])
    names = []
    for kind, source, target in kinds:
        way = f" ({_word(_MEMORY, source)} -> {_word(_MEMORY, target)})" if source >= 0 else ""
        names.append(f"Memcpy {_word(_COPIES, kind)}".rstrip() + way)
    return category(codes, names)
