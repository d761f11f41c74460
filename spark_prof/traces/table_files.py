"""Writes the tables of a bundle, a row group at a time, so that a power cut cannot take them."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.files import sync
from spark_prof.redact import redacted_text
from spark_prof.traces.bundle import META_FILE, is_table_file, table_file
from spark_prof.traces.tables import TABLES

_OF_COMPILERS = {"cubins", "functions"}
"""Tables whose texts come from machine code."""


class TableFiles:
    """The table files that are being written, one Parquet writer each.

    A context: at its end the files are closed and on the disk; after an exception they are gone.
    Secrets in texts, such as those of ranges and logs, are hidden.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._open: dict[str, pq.ParquetWriter] = {}
        self._redacted = lru_cache(maxsize=1 << 16)(redacted_text)
        self.rows: dict[str, int] = {}

    def __enter__(self) -> TableFiles:
        remove_tables(self._folder)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        whole = False
        try:
            # A writer whose disk is full fails again when it writes its footer.
            with suppress(*((OSError,) if kind else ())):
                self._stack.close()
            if kind is None:
                for name in self._open:
                    sync(self._folder / name)
                whole = True
        finally:
            if not whole:
                with suppress(OSError):
                    remove_tables(self._folder)

    def add(self, table: str, rank: int, frame: pd.DataFrame) -> None:
        """Appends a frame with the table's columns as one row group.

        A column that came later may be missing: it is written with its default.
        """
        name = table_file(table, rank)
        schema = TABLES[table].schema
        if name not in self._open:
            # A writer that cannot be closed leaves a file open that it has opened itself.
            file = self._stack.enter_context(pa.OSFile(str(self._folder / name), "wb"))
            writer = pq.ParquetWriter(file, schema, compression="zstd")
            self._open[name] = self._stack.enter_context(writer)
            self.rows[name] = 0
        if frame.empty:
            return
        later = {c.name: c for c in TABLES[table].columns if c.default is not None}
        # A NaN says that something was not measured: only in a text is it a missing value.
        columns = [
            pa.array(frame[f.name], type=f.type, from_pandas=not pa.types.is_floating(f.type))
            if f.name in frame or f.name not in later
            else later[f.name].repeated(len(frame))
            for f in schema
        ]
        if table not in _OF_COMPILERS:
            columns = [self._without_secrets(column) for column in columns]
        self._open[name].write_table(pa.Table.from_arrays(columns, schema=schema))
        self.rows[name] += len(frame)

    def _without_secrets(self, column: pa.Array) -> pa.Array:
        """The column with what is secret in its texts hidden."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        named = pa.types.is_dictionary(column.type)
        if not named and not pa.types.is_string(column.type):
            return column
        texts = (column.dictionary if named else column).to_pylist()
        shown = [text if text is None else self._redacted(text) for text in texts]
        if shown == texts:
            return column
        hidden = pa.array(shown, pa.string())
        return pa.DictionaryArray.from_arrays(column.indices, hidden) if named else hidden


def remove_tables(folder: Path) -> None:
    """Removes what an assembly that was cut short left; meta.json first, which vouches for it."""
    (folder / META_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if is_table_file(path.name):
            path.unlink()
