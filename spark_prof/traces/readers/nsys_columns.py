"""Reads the columns of an nsys export as Arrow batches, without a Python object for every value.

The tables of an export are read whole, in chunks of rows: nsys writes no index, so that a stretch
of time could only be found by reading everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa
from adbc_driver_sqlite import StatementOptions

from spark_prof.errors import CommandError
from spark_prof.traces.readers.nsys_file import NsysFile

TEXT = "text"
"""The one column of an export that is read as text."""

_CHUNK_ROWS = 1 << 20
_BATCH_ROWS = 1 << 16
_LONGEST_TEXT = 1 << 12
_SAMPLES = 512


@dataclass(frozen=True)
class Chunk:
    """Some rows of one table.

    Attributes:
        table: the table's name.
        rows: about how many.
        sql: the query that reads them.
    """

    table: str
    rows: int
    sql: str


def chunks(export: NsysFile, table: str, wanted: Mapping[str, int]) -> list[Chunk]:
    """Cuts a table into chunks that can be read apart from each other.

    Args:
        export: the export.
        table: one that is there.
        wanted: each integer column with what stands for NULL and where it is absent; the column
            `text`, if it is among them, is read as text.
    """
    first, last = _row_numbers(export, table)
    columns = export.selected(table, {name: wanted[name] for name in wanted if name != TEXT})
    if TEXT in wanted:
        text = TEXT if TEXT in export.columns(table) else "NULL"
        columns += f", substr(CAST(COALESCE({text}, '') AS TEXT), 1, {_LONGEST_TEXT}) AS {TEXT}"
    count = max(1, -(-(last - first + 1) // _CHUNK_ROWS))
    # Rows that are numbered sparsely shall not make chunks without end.
    size = -(-(last - first + 1) // min(count, 4096))
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
    found = []
    sql = (
        f"SELECT CAST(start AS INTEGER) FROM {table} WHERE rowid >= ? AND start IS NOT NULL LIMIT 1"
    )
    for number in range(first, last + 1, step):
        found += [start for (start,) in export.rows(sql, (number,)) if isinstance(start, int)]
    return found


def batches(path: Path, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """The rows of a chunk.

    Raises:
        CommandError: the export is damaged there.
    """
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
