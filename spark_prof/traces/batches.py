"""Reads a table of a bundle a row group at a time, so that memory does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.tables import TABLES

ROWS = 1 << 18
"""Rows of a batch; a row group may hold more."""


def table_batches(
    bundle: Bundle, table: str, rank: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of one table of a rank in their order, at most `ROWS` at a time.

    Columns that came after the bundle was written have their default. Nothing comes of a table
    that the bundle lacks.

    Raises:
        CommandError: the file is damaged.
    """
    name = table_file(table, rank)
    if name not in bundle.meta.tables:
        return
    schema = TABLES[table].schema
    names = list(columns) if columns is not None else schema.names
    path = bundle.path / name
    try:
        later = TABLES[table].later_columns(pq.read_schema(path)) or []
        absent = {column.name: column for column in later}
        texts = [f.name for f in schema if pa.types.is_dictionary(f.type) and f.name not in absent]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            there = [n for n in names if n not in absent]
            for batch in file.iter_batches(ROWS, columns=there):
                arrays = {
                    n: pa.repeat(pa.scalar(absent[n].default), len(batch)).cast(absent[n].type)
                    if n in absent
                    else batch[n].cast(schema.field(n).type)
                    for n in names
                }
                yield _checked(pa.table(arrays), path)
    except (OSError, pa.ArrowException) as error:
        raise CommandError(f"{path} is damaged; record again") from error


def _checked(found: pa.Table, path: object) -> pa.Table:
    if any(column.null_count for column in found.columns):
        raise CommandError(f"{path} lacks values; record again")
    return found
