"""Reads an nsys export once from end to end, and leaves its events in buckets of time on the disk.

The tables are read whole, in chunks of rows as Arrow batches, without a Python object for every
value: nsys writes no index, so that a stretch of time could only be found by reading everything.
Rows are about in order, but not for sure: each goes into the bucket of its start, so that memory
holds one stretch of time at once. A bucket is some files, one for each table and each chunk that
had rows for it.

DuckDB sorts with spilling too, but took 1.6 times the processor time, twice the time and four times
the memory for taking in and giving back 4.6 million rows (4.9 s and 0.9 GiB to 2.7 s and 0.23 GiB).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from urllib.parse import quote

import adbc_driver_sqlite.dbapi as adbc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_sqlite import StatementOptions

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.readers.nsys_file import (
    GPU_COLUMNS,
    GRAPH,
    KERNEL,
    MARK,
    MEMCPY,
    MEMSET,
    OVERHEADS,
    PROCESS_SHIFT,
    RUNTIME,
    NsysFile,
)

BUCKET_ROWS = 900_000  # about this many rows make a bucket

_MOST = 512


def bounds_of(starts: Int64s, rows: int, bucket_rows: int) -> Int64s:
    """Where buckets of equal size begin, without the first."""
    count = min(_MOST, rows // bucket_rows + 1)
    if count == 1 or not len(starts):
        return np.empty(0, np.int64)
    places = np.arange(1, count) * len(starts) // count
    return np.unique(np.sort(starts)[places])


class Buckets:
    """Rows of several tables by their start; `bounds` has the first ns of each bucket but one."""

    def __init__(self, folder: Path, bounds: Int64s) -> None:
        self._folder, self.bounds = folder, bounds

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def of(self, times: Int64s) -> Int64s:
        """The bucket of each time."""
        return np.searchsorted(self.bounds, times, side="right").astype(np.int64)

    def add(self, table: str, chunk: int, batch: pa.RecordBatch, delay: int = 0) -> None:
        """Adds rows with a column `start`. Each chunk may be added by a thread of its own.

        Args:
            delay: they count as if they began so much later, in ns.
        """
        bucket = self.of(batch["start"].to_numpy() + delay)
        least, most = int(bucket.min()), int(bucket.max())
        if least == most:
            self._write(table, chunk, least, batch)
            return
        order = np.argsort(bucket, kind="stable")
        batch, bucket = batch.take(pa.array(order)), bucket[order]
        edges = np.flatnonzero(np.diff(bucket)) + 1
        for first, last in zip([0, *edges], [*edges, len(bucket)], strict=True):
            self._write(table, chunk, int(bucket[first]), batch.slice(first, last - first))

    def read(self, table: str, bucket: int) -> pa.Table | None:
        """The rows of a table in a bucket, in the order of their chunks; None if there is none."""
        tables = []
        for path in sorted(self._folder.glob(f"{table}-{bucket}-*")):
            with pa.OSFile(str(path), "rb") as file:
                while file.tell() < file.size():
                    tables.append(pa.ipc.open_stream(file).read_all())
        return pa.concat_tables(tables).unify_dictionaries() if tables else None

    def remove(self, bucket: int) -> None:
        """Forgets the rows of a bucket."""
        for path in self._folder.glob(f"*-{bucket}-*"):
            path.unlink()

    def _write(self, table: str, chunk: int, bucket: int, batch: pa.RecordBatch) -> None:
        arrays = [
            column.dictionary_encode() if pa.types.is_string(column.type) else column
            for column in batch.columns
        ]
        coded = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
        try:
            with (
                open(self._folder / f"{table}-{bucket}-{chunk:06}", "ab") as file,
                pa.ipc.new_stream(file, coded.schema) as stream,
            ):
                stream.write_batch(coded)
        except OSError as error:
            raise CommandError(
                f"cannot write temporary files into {self._folder} ({error.strerror or error}); "
                "set TMPDIR to a folder with more space"
            ) from error


TEXT = "text"  # the one column of an export that is read as text

_CHUNK_ROWS = 1 << 20
_BATCH_ROWS = 1 << 16
_LONGEST_TEXT = 1 << 12
_SAMPLES = 512


@dataclass(frozen=True)
class Chunk:
    """Some rows of one table."""

    table: str
    rows: int  # about how many
    sql: str


def chunks(export: NsysFile, table: str, defaults: Mapping[str, int]) -> list[Chunk]:
    """Cuts a table into chunks that can be read apart from each other.

    Args:
        defaults: each integer column with what stands for NULL and where it is absent; the column
            `text`, if it is among them, is read as text.
    """
    first, last = _row_numbers(export, table)
    if first > last:
        return []
    columns = export.selected(table, {name: defaults[name] for name in defaults if name != TEXT})
    if TEXT in defaults:
        text = TEXT if TEXT in export.columns(table) else "NULL"
        columns += f", substr(CAST(COALESCE({text}, '') AS TEXT), 1, {_LONGEST_TEXT}) AS {TEXT}"
    rows = last - first + 1
    # Rows that are numbered sparsely shall not make chunks without end.
    size = -(-rows // min(-(-rows // _CHUNK_ROWS), 4096))
    return [
        Chunk(
            table,
            size,
            f"SELECT {columns} FROM {table} WHERE rowid BETWEEN {at} AND {at + size - 1}",
        )
        for at in range(first, last + 1, size)
    ]


def some_starts(export: NsysFile, table: str) -> list[int]:
    """The starts of some of the table's rows, from all over it."""
    first, last = _row_numbers(export, table)
    step = max(1, (last - first + 1) // _SAMPLES)
    starts = []
    sql = (
        f"SELECT CAST(start AS INTEGER) FROM {table} WHERE rowid >= ? AND start IS NOT NULL LIMIT 1"
    )
    for number in range(first, last + 1, step):
        starts += [start for (start,) in export.rows(sql, (number,)) if isinstance(start, int)]
    return starts


def batches(path: Path, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """The rows of a chunk."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with adbc.connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute("PRAGMA trusted_schema = OFF")
            cursor.adbc_statement.set_options(
                **{StatementOptions.BATCH_ROWS.value: str(_BATCH_ROWS)}
            )
            cursor.execute(chunk.sql)
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    yield batch
    except (adbc.Error, pa.ArrowException, OSError) as error:
        # The driver says where it is in its own code behind the first line.
        why = str(error).splitlines()[0][:200]
        raise CommandError(f"{path} is no whole Nsight Systems export ({why})") from error


def _row_numbers(export: NsysFile, table: str) -> tuple[int, int]:
    """The first and the last row's number; an empty table's last comes before its first."""
    for least, most in export.rows(
        f"SELECT (SELECT min(rowid) FROM {table}), (SELECT max(rowid) FROM {table})"
    ):
        # A damaged table may count down.
        if isinstance(least, int) and isinstance(most, int) and least <= most:
            return least, most
    return 1, 0


NVTX = "NVTX_EVENTS"

NESTED = (59, 70)  # NVTX_EVENTS.eventType of push/pop ranges, which lie inside each other

RANGES = (*NESTED, 60, 71)  # and of start/end ranges, which may lie anyhow

_DOMAIN = 75
LATEST_NS = 1 << 60  # times beyond this, in ns from the session's start, are damage

OPEN = 1 << 61  # the end of a range that had not ended when the recording did

_ROUNDING_NS = 1_000_000
"""By so much work may seem to start before its launch: then it is not in a bucket before it."""

_READERS = 2  # threads that read; more than two only wait for each other in SQLite

_COLUMNS: Mapping[str, Mapping[str, int]] = {
    RUNTIME: {"start": -OPEN, "end": -OPEN, "globalTid": 0, "correlationId": -1, "nameId": -1},
    NVTX: {
        "start": -OPEN, "end": OPEN, "eventType": 0, "globalTid": 0, "domainId": 0, "textId": -1,
        TEXT: 0,
    },
    **{table: dict(GPU_COLUMNS[table]) | {"start": -OPEN, "end": -OPEN, "globalPid": 0}
       for table in (KERNEL, MEMCPY, MEMSET, GRAPH)},
    **{table: {"start": -OPEN, "end": -OPEN, "globalTid": 0, "nameId": -1} for table in OVERHEADS},
}  # fmt: skip
_WORK = (KERNEL, MEMCPY, MEMSET, GRAPH)


@dataclass
class Scan:
    """What one reading found; processes are global ids without their thread."""

    # The GPUs that each process used, by process.
    devices: dict[int, set[int]] = field(default_factory=dict)
    callers: set[int] = field(default_factory=set)
    # The text of each NVTX domain, by process and number.
    domains: dict[tuple[int, int], str] = field(default_factory=dict)
    # Its number in the table of strings where it has no text of its own.
    domain_ids: dict[tuple[int, int], int] = field(default_factory=dict)
    marks: int = 0
    last_ns: int = -OPEN
    rows: dict[str, int] = field(default_factory=dict)
    # How many events had times that cannot be, by table.
    impossible: dict[str, int] = field(default_factory=dict)
    endless: int = 0  # ranges that had not ended

    def join(self, other: Scan) -> Scan:
        """Both together; what is said twice counts as this one says it."""
        for process, devices in other.devices.items():
            self.devices[process] = devices | self.devices.get(process, set())
        self.callers |= other.callers
        self.domains = other.domains | self.domains
        self.domain_ids = other.domain_ids | self.domain_ids
        self.marks += other.marks
        self.last_ns = max(self.last_ns, other.last_ns)
        for counts, other_counts in ((self.rows, other.rows), (self.impossible, other.impossible)):
            for table, count in other_counts.items():
                counts[table] = counts.get(table, 0) + count
        self.endless += other.endless
        return self


def scan_export(export: NsysFile, folder: Path, bucket_rows: int) -> tuple[Scan, Buckets]:
    """Reads every event of an export into buckets."""
    tables = [table for table in _COLUMNS if export.has(table, "start", "end", *_owner(table))]
    overheads = [table for table in tables if table in OVERHEADS and export.count(table)]
    tables = [table for table in tables if table not in OVERHEADS] + overheads[:1]
    work = [chunk for table in tables for chunk in chunks(export, table, _COLUMNS[table])]
    buckets = Buckets(
        folder, bounds_of(_samples(export, work), sum(c.rows for c in work), bucket_rows)
    )

    def read(number: int) -> Scan:
        scan_of_chunk = Scan()
        for batch in batches(export.path, work[number]):
            _keep(batch, work[number].table, number, scan_of_chunk, buckets)
        return scan_of_chunk

    with ThreadPoolExecutor(_READERS) as pool:
        return reduce(Scan.join, pool.map(read, range(len(work))), Scan()), buckets


def _owner(table: str) -> list[str]:
    return ["globalPid" if table in _WORK else "globalTid"] + ["eventType"] * (table == NVTX)


def _samples(export: NsysFile, work: list[Chunk]) -> Int64s:
    """Starts of rows, a table's as often as stands for its share of all rows."""
    rows: dict[str, int] = {}
    for chunk in work:
        rows[chunk.table] = rows.get(chunk.table, 0) + chunk.rows
    samples = []
    for table, count in rows.items():
        starts = np.array(some_starts(export, table), np.int64)
        share = max(1, 4096 * count // (sum(rows.values()) * max(1, len(starts))))
        samples.append(np.repeat(starts, share))
    return np.concatenate(samples) if samples else np.empty(0, np.int64)


def _keep(batch: pa.RecordBatch, table: str, chunk: int, scan: Scan, buckets: Buckets) -> None:
    """Puts a batch's events into their buckets, and notes what is said about the whole."""
    if table == NVTX:
        batch = _set_aside(batch, scan)
    start, end = (batch[name].to_numpy() for name in ("start", "end"))
    possible = (start > -LATEST_NS) & (start < LATEST_NS) & (end >= start)
    possible &= (end < LATEST_NS) | (end == OPEN)
    if not possible.all():
        lost = len(start) - int(possible.sum())
        scan.impossible[table] = scan.impossible.get(table, 0) + lost
        batch, end = batch.filter(pa.array(possible)), end[possible]
    if not batch.num_rows:
        return
    scan.rows[table] = scan.rows.get(table, 0) + batch.num_rows
    ended = end[end != OPEN] if table == NVTX else end
    scan.endless += len(end) - len(ended)
    if len(ended):
        scan.last_ns = max(scan.last_ns, int(ended.max()))
    if table in _WORK:
        pairs = pa.table({name: batch[name] for name in ("globalPid", "deviceId")})
        for row in pairs.group_by(["globalPid", "deviceId"]).aggregate([]).to_pylist():
            process = row["globalPid"] >> PROCESS_SHIFT
            scan.devices.setdefault(process, set()).add(row["deviceId"])
    elif table == RUNTIME:
        owner = pc.unique(pc.shift_right(batch["globalTid"], PROCESS_SHIFT))
        scan.callers |= set(owner.to_pylist())
    buckets.add(table, chunk, batch, _ROUNDING_NS if table in _WORK else 0)


def _set_aside(batch: pa.RecordBatch, scan: Scan) -> pa.RecordBatch:
    """Takes out the rows that name domains and what is no range; a mark ends where it begins."""
    event = batch["eventType"].to_numpy()
    usable = np.isin(event, (MARK, _DOMAIN, *RANGES))
    if not usable.all():
        batch, event = batch.filter(pa.array(usable)), event[usable]
    if (event == _DOMAIN).any():
        named = batch.filter(pa.array(event == _DOMAIN))
        for owner, domain, text, number in zip(
            named["globalTid"].to_pylist(), named["domainId"].to_pylist(),
            decoded(named[TEXT]), named["textId"].to_pylist(), strict=True,
        ):  # fmt: skip
            key = (owner >> PROCESS_SHIFT, domain)
            scan.domains.setdefault(key, text)
            if not text:
                scan.domain_ids.setdefault(key, number)
        batch = batch.filter(pa.array(event != _DOMAIN))
        event = event[event != _DOMAIN]
    if (event == MARK).any():
        marks = event == MARK
        ends = np.where(marks, batch["start"].to_numpy(), batch["end"].to_numpy())
        batch = batch.set_column(batch.schema.get_field_index("end"), "end", pa.array(ends))
        scan.marks += int(marks.sum())
    return batch


def decoded(column: pa.Array) -> list[str]:
    """The texts of a column that may hold bytes which are no UTF-8."""
    return [value.decode("utf-8", "replace") for value in column.cast(pa.binary()).to_pylist()]
