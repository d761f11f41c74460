"""A bundle: one recording as a folder of Parquet tables and a meta.json, opened and checked here.

`meta.json` is written last. It lists every table with its rows, and a bundle whose files do not
agree with it is refused. Nothing in a bundle is executed. Tables are written a row group at a time,
so that a power cut cannot take them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.arrays import Int64s
from spark_prof.cores import cores
from spark_prof.errors import CommandError
from spark_prof.files import sync, write_whole
from spark_prof.redact import redacted_text, redacted_value
from spark_prof.traces.chunks import META_FILE as META_FILE
from spark_prof.traces.large_columns import LargeColumn, Values, only_value
from spark_prof.traces.tables import DURATIONS, TABLES, empty_table

SCHEMA = 1
IMPORTED = "imported: "
"""What the backend of an imported bundle begins with; the trace's format follows."""

ROWS = 1 << 18  # rows of a batch; a row group may hold more

_META_LIMIT = 64 << 20
_LARGE = 1 << 18  # rows from which on the columns of a table are read on every core
_SMALL = 1 << 16  # rows up to which what was read of a table stays for who reads it again

HIGHEST_RANK = 2**16 - 1  # the highest rank that is written or read: analyses count up to it

_TABLE_FILE = re.compile(r"([a-z_]+)-rank(0|[1-9][0-9]{0,4})\.parquet")


class OtherSchemaError(CommandError):
    """A bundle that another spark-prof wrote, which is no damage."""


@dataclass(frozen=True)
class Meta:
    """What a bundle says about itself."""

    schema: int
    spark_prof: str
    # Complete; interrupted, when somebody ended the recording early; or salvaged, when the recorded
    # process died and this is what it had written.
    state: str
    command: tuple[str, ...]
    created: str  # when the recording ended, ISO 8601 in UTC
    backend: str
    settings: dict[str, Any] = field(default_factory=dict)
    # For each recorded process its versions, model, configuration, GPU and clocks.
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    tables: dict[str, int] = field(default_factory=dict)  # rows of each table file

    def write(self, folder: Path) -> None:
        """Writes meta.json, whole or not at all; a power cut cannot take it afterwards.

        Secrets in it are hidden.
        """
        text = json.dumps(redacted_value(asdict(self)), indent=1).encode()
        write_whole(folder / META_FILE, text, durable=True)

    @classmethod
    def read(cls, folder: Path) -> Meta:
        """Reads meta.json."""
        path = folder / META_FILE
        try:
            if path.stat().st_size > _META_LIMIT:
                raise CommandError(f"{path} is larger than any bundle's; this is no bundle")
            value = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(value, dict):
                raise CommandError(f"{path} is damaged (it holds no object); record again")
            if value["schema"] != SCHEMA:
                raise OtherSchemaError(
                    f"{folder} has bundle schema {value['schema']!r:.20}, this spark-prof reads "
                    f"{SCHEMA}; update spark-prof"
                )
            return msgspec.convert({item.name: value[item.name] for item in fields(cls)}, cls)
        except FileNotFoundError as error:
            raise CommandError(f"{folder} holds no {META_FILE}, so it is no bundle") from error
        except KeyError as error:
            raise CommandError(f"{path} is damaged (it has no {error}); record again") from error
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CommandError(f"{path} is damaged ({error}); record again") from error


def own_version() -> str:
    """The version of the spark-prof that is running."""
    try:
        return version("spark-prof")
    except PackageNotFoundError:
        return "unknown"


def table_file(table: str, rank: int) -> str:
    """The file that holds a table of a rank."""
    if not 0 <= rank <= HIGHEST_RANK:
        raise CommandError(f"{rank} is no rank; ranks go from 0 to {HIGHEST_RANK}")
    return f"{table}-rank{rank}.parquet"


def is_table_file(name: str) -> bool:
    """Whether a file of that name holds a table."""
    match = _TABLE_FILE.fullmatch(name)
    return bool(match and match[1] in TABLES and int(match[2]) <= HIGHEST_RANK)


def is_import(backend: str) -> bool:
    """Whether a bundle with that backend was made of another tool's trace."""
    return backend.startswith(IMPORTED)


class Bundle:
    """An opened bundle; tables are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            fact = "is no folder" if path.exists() else "does not exist"
            raise CommandError(f"{path} {fact}; give the folder of a bundle")
        self.path = path
        self.named = ""  # how a person named what it was made of, where that is gone later
        self.meta = Meta.read(path)
        self._small: dict[str, tuple[_Version, dict[str, pa.ChunkedArray]]] = {}
        # What the end of each file says of it: a table of thousands of row groups has much to say.
        self._footers: dict[str, tuple[_Version, pq.FileMetaData]] = {}
        for table_name, rows in self.meta.tables.items():
            self._check(table_name, rows)

    @property
    def label(self) -> str:
        """What it is called in a message: as a person named it, else by its folder."""
        return self.named or str(self.path)

    def __repr__(self) -> str:
        rows = {
            table: sum(self.meta.tables.get(table_file(table, rank)) or 0 for rank in self.ranks)
            for table in ("steps", "kernels")
        }
        ranks = ", ".join(map(str, self.ranks))
        return (
            f"Bundle({str(self.path)!r}, {'ranks' if len(self.ranks) > 1 else 'rank'} {ranks}, "
            f"{rows['steps']:,} steps, {rows['kernels']:,} kernels)"
        )

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The recorded ranks."""
        ranks = {
            int(name.removeprefix("steps-rank").removesuffix(".parquet"))
            for name in self.meta.tables
            if name.startswith("steps-rank")
        }
        return tuple(sorted(ranks))

    @property
    def imported(self) -> bool:
        """Whether it was made of a trace that something else recorded."""
        return is_import(self.meta.backend)

    def facts(self, rank: int) -> dict[str, Any]:
        """What the rank's worker said about itself, empty where it said nothing."""
        return self.meta.facts.get(f"rank{rank}", {})

    def arrow(self, table: str, rank: int, columns: Sequence[str] | None = None) -> pa.Table:
        """One table of a rank; empty where the bundle has none."""
        rows = self.meta.tables.get(table_file(table, rank))
        if rows is None:
            empty = empty_table(table)
            return empty if columns is None else empty.select(list(columns))
        with self._opened(table, rank, columns) as (file, stored, whole):
            # Threads cost more than they bring where a table has many small row groups.
            return whole(file.read(stored, use_threads=rows >= _LARGE))

    def frame(self, table: str, rank: int, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """One table of a rank as a DataFrame; names become categories."""
        if table not in TABLES:
            raise CommandError(
                f"a bundle has no table {table!r:.60}; it has {', '.join(TABLES)}. Kernels with "
                "layer and component: spark_prof.report(bundle).kernels_frame()"
            )
        names = TABLES[table].schema.names if columns is None else list(columns)
        if self.meta.tables.get(table_file(table, rank), 0) < _LARGE:
            return self._series(table, rank, names)
        with ThreadPoolExecutor(cores()) as pool:
            columns_read = pool.map(lambda name: self._large_column(table, rank, name), names)
            return pd.DataFrame(dict(zip(names, columns_read, strict=True)), copy=False)

    def spread(
        self, table: str, rank: int, columns: Sequence[str], rows: int
    ) -> tuple[pd.DataFrame, Int64s]:
        """Whole row groups, spread evenly over a table, of about so many rows.

        # bar: a report of 10 M kernels in 4 s

        Returns:
            The rows, and which rows of the table they are; all where it has no more than that.
        """
        total = self.meta.tables.get(table_file(table, rank), 0)
        if total <= rows:
            return self.frame(table, rank, columns), np.arange(total)
        with self._opened(table, rank, columns) as (file, stored, whole):
            groups = file.num_row_groups
            count = max(1, groups * rows // total)
            chosen = np.unique(np.linspace(0, groups - 1, count, dtype=int))
            sizes = [file.metadata.row_group(group).num_rows for group in range(groups)]
            first = np.append(0, np.cumsum(sizes))
            place = np.concatenate([np.arange(first[g], first[g + 1]) for g in chosen])
            row_groups = whole(file.read_row_groups(chosen.tolist(), columns=stored))
        return row_groups.unify_dictionaries().to_pandas(split_blocks=True), place

    def batches(
        self, table: str, rank: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """The rows of one table of a rank in their order, at most `ROWS` at a time.

        Nothing comes of a table that the bundle lacks.
        """
        if table_file(table, rank) in self.meta.tables:
            with self._opened(table, rank, columns) as (file, stored, whole):
                for batch in file.iter_batches(ROWS, columns=stored):
                    yield whole(pa.Table.from_batches([batch]))

    @contextmanager
    def _opened(
        self, table: str, rank: int, columns: Sequence[str] | None
    ) -> Iterator[tuple[pq.ParquetFile, list[str], Callable[[pa.Table], pa.Table]]]:
        """A table's file, which of the columns to read of it, and what adds the later ones."""
        name, schema = table_file(table, rank), TABLES[table].schema
        names = schema.names if columns is None else list(columns)

        def whole(rows: pa.Table) -> pa.Table:
            for column in later.values():
                if column.name in names:
                    field = schema.field(column.name)
                    rows = rows.append_column(field, column.repeated(len(rows)))
            rows = rows.select(names)
            if any(column.null_count for column in rows.columns):
                raise CommandError(f"{self.path / name} lacks values; record again")
            return rows

        try:
            footer = self._footer(name)
            missing = TABLES[table].later_columns(footer.schema.to_arrow_schema()) or ()
            later = {column.name: column for column in missing}
            # One column at least, which tells how many rows there are.
            stored = [n for n in names if n not in later] or schema.names[:1]
            strings = [n for n in stored if pa.types.is_dictionary(schema.field(n).type)]
            path = self.path / name
            with pq.ParquetFile(path, metadata=footer, read_dictionary=strings) as file:
                yield file, stored, whole
        except (OSError, pa.ArrowException) as error:
            raise CommandError(f"{self.path / name} is damaged; record again") from error

    def _series(self, table: str, rank: int, names: Sequence[str]) -> pd.DataFrame:
        small = self.meta.tables.get(table_file(table, rank), 0) <= _SMALL
        if small:
            arrow = self._small_columns(table, rank, names)
        else:
            arrow = self.arrow(table, rank, names).unify_dictionaries()
        frame: pd.DataFrame = arrow.to_pandas(split_blocks=True, self_destruct=not small)
        return frame

    def _small_columns(self, table: str, rank: int, names: Sequence[str]) -> pa.Table:
        """Columns of a small table, which stay: several topics look at the steps."""
        name = table_file(table, rank)
        version = _version(self.path / name)
        read_version, columns = self._small.get(name, (version, {}))
        if read_version != version:
            columns = {}
        self._small[name] = version, columns
        if unread := [column for column in names if column not in columns]:
            arrow = self.arrow(table, rank, unread).unify_dictionaries().combine_chunks()
            columns.update(zip(unread, arrow.columns, strict=True))
        return pa.table([columns[column] for column in names], names=list(names))

    def _large_column(self, table: str, rank: int, name: str) -> Values | pd.Categorical:
        """One column that is there at least once, whose values are copied as they are read."""
        kind = TABLES[table].schema.field(name).type
        column = LargeColumn(kind, self.meta.tables[table_file(table, rank)])
        with self._opened(table, rank, [name]) as (file, stored, _):
            value = only_value(file, name) if stored == [name] else None
        if value is not None:
            return column.of_one(value)
        for rows in self.batches(table, rank, [name]):
            for values in rows.column(0).chunks:
                column.add(values)
        return column.filled()

    def _footer(self, name: str) -> pq.FileMetaData:
        """What the end of a table file says, read again where the file is another one."""
        version = _version(self.path / name)
        if name not in self._footers or self._footers[name][0] != version:
            self._footers[name] = version, pq.read_metadata(self.path / name)
        return self._footers[name][1]

    def _check(self, name: str, rows: int) -> None:
        """Refuses a table file that is not what meta.json promises."""
        path = self.path / name
        if not is_table_file(name):
            raise CommandError(f"{self.path / META_FILE} names {name!r:.80}, which is no table")
        try:
            metadata = self._footer(name)
        except FileNotFoundError as error:
            raise CommandError(
                f"{self.label} is incomplete: {name} is missing; copy it again"
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise CommandError(f"{path} is truncated or damaged; record again") from error
        schema = metadata.schema.to_arrow_schema()
        if (
            metadata.num_rows != rows
            or TABLES[name.split("-rank")[0]].later_columns(schema) is None
        ):
            raise CommandError(f"{path} does not hold what {META_FILE} promises; record again")


_Version = tuple[int, int]
"""When a file was written, and its bytes: another pair is another file."""


def _version(path: Path) -> _Version:
    stat = path.stat() if path.exists() else None
    return (stat.st_mtime_ns, stat.st_size) if stat else (0, 0)


_OF_COMPILERS = {"cubins", "functions"}  # tables whose texts come from machine code


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How a table is written: each time and launch number as what it adds to the one before it.

    These hardly repeat, so that a dictionary of them is longer than they are.
    """
    rising = [field.name for field in schema if is_rising(field)]
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in schema.names if name not in rising],
        "column_encoding": dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
    }


def is_rising(field: pa.Field) -> bool:
    """Whether a column counts up: a time, or the number of a launch."""
    return field.type == pa.int64() and (
        (field.name.endswith("_ns") and field.name not in DURATIONS) or field.name == "correlation"
    )


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
            writer = pq.ParquetWriter(file, schema, **parquet_options(schema))
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
        redacted = [text if text is None else self._redacted(text) for text in texts]
        if redacted == texts:
            return column
        hidden = pa.array(redacted, pa.string())
        return pa.DictionaryArray.from_arrays(column.indices, hidden) if named else hidden


def remove_tables(folder: Path) -> None:
    """Removes what an assembly that was cut short left; meta.json first, which vouches for it."""
    (folder / META_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if is_table_file(path.name):
            path.unlink()
