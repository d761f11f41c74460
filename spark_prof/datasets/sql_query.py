"""Runs one SQL query over the tables of many bundles, in memory, locked away from everything else.

After the views are made DuckDB may read no other file, load no extension and change no setting;
see https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview.

Every table file is reached through a link in a folder of our own, `<table>/_member=<n>/_rank=<r>/`:
DuckDB takes both numbers from the path, and no name that somebody gave a folder stands in a
statement.

The projections show ranges as the GPU saw them. A range has the work of the API calls that lie
wholly inside it on its own thread; so has each range around it, as in `nsys stats`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.analyzers.layer_consistency import LABELS, label_kernels
from spark_prof.analyzers.lookup import mapping_in, positions
from spark_prof.arrays import Int64s
from spark_prof.ending import interrupted_by, temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.scopes import enclosing, groups
from spark_prof.traces.tables import TABLES, Table, TableColumn, empty_table

_WORK = ("name", "kind", "start_ns", "end_ns", "device", "stream", "correlation")
_KERNELS = TABLES["kernels"].schema
_MARKERS = TABLES["markers"].schema


def calls_of(host: pd.DataFrame, kernels: pd.DataFrame) -> Int64s:
    """The row of `host` that launched each kernel, the first one of its number; -1 for none."""
    correlations, first = np.unique(host["correlation"].to_numpy(np.int64), return_index=True)
    numbers = kernels["correlation"].to_numpy(np.int64)
    return np.where(numbers >= 0, np.append(first, -1)[positions(correlations, numbers)], -1)


def _slices(markers: pd.DataFrame, calls: pd.DataFrame) -> tuple[Int64s, Int64s]:
    """The first of a thread's calls inside each range and the one behind its last, as positions."""
    first, last = np.zeros((2, len(markers)), np.int64)
    start, end = (markers[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    thread, begun, returned = (calls[n].to_numpy() for n in ("thread", "start_ns", "end_ns"))
    for thread_id, rows_of_thread in groups(markers["thread"].to_numpy(np.int64)):
        begin, behind = np.searchsorted(thread, (thread_id, thread_id + 1))
        latest = np.maximum.accumulate(returned[begin:behind])
        first[rows_of_thread] = begin + np.searchsorted(begun[begin:behind], start[rows_of_thread])
        last[rows_of_thread] = begin + np.searchsorted(latest, end[rows_of_thread], side="right")
    return first, np.maximum(first, last)


def _extent(work: pd.DataFrame, first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """From the first start to the last end of each slice; no slice may be empty."""
    # One behind the other, the slices leave gaps that are no longer than all work together.
    order = np.argsort(first, kind="stable")
    edges = np.stack([first[order], last[order]], axis=1).reshape(-1)
    start, end = np.empty((2, len(first)), np.int64)
    if len(first):
        start[order] = np.minimum.reduceat(np.append(work["start_ns"], 0), edges)[::2]
        end[order] = np.maximum.reduceat(np.append(work["end_ns"], 0), edges)[::2]
    return start, end


def nesting(markers: pd.DataFrame) -> tuple[Int64s, Int64s]:
    """The row of the innermost push/pop range around each one, and how many there are.

    The row is -1 for none and for other ranges.
    """
    start, end = (markers[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    parent = np.full(len(markers), -1, np.int64)
    nested = np.flatnonzero(markers["nested"].to_numpy(bool))
    for _, of_thread in groups(markers["thread"].to_numpy(np.int64)[nested]):
        rows = nested[of_thread]
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        around = enclosing(start[rows], end[rows])
        parent[rows] = np.where(around >= 0, rows[around], -1)
    # Each round looks twice as far up.
    above, level = parent.copy(), (parent >= 0).astype(np.int64)
    active = np.flatnonzero(above >= 0)
    while len(active):
        level[active] += level[above[active]]
        above[active] = above[above[active]]
        active = active[above[active] >= 0]
    return parent, level


def project(markers: pd.DataFrame, host: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The ranges with work on the GPU, in the order of `markers`; nvtx_gpu_proj_trace.

    Columns: `range`, the row of `markers`, and its columns but `step`; `gpu_start_ns` and
    `gpu_end_ns`, from the first work's start to the last one's end; `ops`, how many kernels, copies
    and memsets; `level`, how many push/pop ranges are around it; `parent`, the innermost of them as
    a row of `markers`, -1 for none; `children`, how many ranges with work have it as their parent.
    """
    # In the order of its launches, thread by thread, the work of a range is a slice.
    call = calls_of(host, kernels)
    calls, work = host.iloc[call[call >= 0]], kernels[call >= 0]
    order = np.lexsort((calls["start_ns"], calls["thread"]))
    first, last = _slices(markers, calls.iloc[order])
    row = np.flatnonzero(last > first)
    gpu_start, gpu_end = _extent(work.iloc[order], first[row], last[row])
    parent, level = nesting(markers)
    above = parent[row]
    children = np.bincount(above[above >= 0], minlength=len(markers))
    ranges = markers[[*_OF_RANGE]].iloc[row].reset_index(drop=True)
    ranges.insert(0, "range", row)
    return ranges.assign(
        gpu_start_ns=gpu_start,
        gpu_end_ns=gpu_end,
        ops=(last - first)[row],
        level=level[row],
        parent=above,
        children=children[row],
    )


def _projections(bundle: Bundle, rank: int) -> pd.DataFrame:
    markers, host = bundle.frame("markers", rank), bundle.frame("host", rank)
    return project(markers, host, bundle.frame("kernels", rank, _WORK))


_OF_RANGE = ("name", "domain", "nested", "thread", "start_ns", "end_ns")
_OF_WORK = ("gpu_start_ns", "gpu_end_ns", "ops", "level", "parent", "children")
_COMPUTED: Mapping[str, tuple[list[pa.Field], Callable[[Bundle, int], pd.DataFrame]]] = {
    "placed": ([*_KERNELS, *(pa.field(name, pa.string()) for name in LABELS)], label_kernels),
    "projections": (
        [
            pa.field("range", pa.int64()),
            *map(_MARKERS.field, _OF_RANGE),
            *(pa.field(name, pa.int64()) for name in _OF_WORK),
        ],
        _projections,
    ),
}
"""The columns and the rows of the computed views."""

LAUNCHES = """
    SELECT k.bundle, k.rank, c.start_ns AS call_ns, c.end_ns - c.start_ns AS call_time_ns,
        CASE WHEN k.start_ns >= c.end_ns THEN k.start_ns - c.end_ns ELSE -1 END AS queue_ns,
        k.start_ns, k.end_ns - k.start_ns AS time_ns,
        greatest(k.end_ns, c.end_ns) - c.start_ns AS total_ns,
        k.name, k.device, k.stream, c.name AS function, c.thread, k.correlation
    FROM kernels k JOIN (
        SELECT * FROM host WHERE correlation >= 0
        QUALIFY row_number() OVER (PARTITION BY bundle, rank, correlation ORDER BY start_ns) = 1
    ) c USING (bundle, rank, correlation)
    WHERE k.kind = 'kernel' ORDER BY bundle, rank, call_ns, k.start_ns
"""
"""Kernels with the calls that launched them, a view of views; queue_ns is from the call's return to
the kernel's start, -1 where that was before, total_ns from the call's start until both ended."""


_FACTS = ("state", "created", "backend", "spark_prof")


def create_views(
    database: duckdb.DuckDBPyConnection,
    bundles: Mapping[str, Bundle],
    folder: Path,
    needed: Container[str],
) -> None:
    """Creates a view a table with `bundle` and `rank` first, the computed ones, and `bundles`.

    `kernel_id(name)` is the id that a kernel has in every document.

    The empty folder must stay as long as the database. Computed views that are not wanted have no
    rows.
    """
    rows = [_bundle_row(number, *item) for number, item in enumerate(bundles.items())]
    database.execute(
        "CREATE TABLE bundles (member INTEGER, bundle VARCHAR, model VARCHAR, gpu VARCHAR, "
        "state VARCHAR, created VARCHAR, backend VARCHAR, spark_prof VARCHAR)"
    )
    database.executemany(f"INSERT INTO bundles VALUES ({', '.join('?' * len(rows[0]))})", rows)
    for table in TABLES.values():
        _link(table, list(bundles.values()), folder / table.name)
        _view(database, table.name, table.columns, folder / table.name)
    for name, (fields, rows_of) in _COMPUTED.items():
        place = folder / name
        _write(_place(place, -1, -1), pa.schema(fields).empty_table())
        for number, bundle in enumerate(bundles.values() if name in needed else ()):
            for rank in bundle.ranks:
                rows_of_rank = pa.Table.from_pandas(rows_of(bundle, rank), preserve_index=False)
                _write(_place(place, number, rank), rows_of_rank)
        _view(database, name, [TableColumn(f.name, f.type, "") for f in fields], place)
    database.execute(f"CREATE VIEW launches AS {LAUNCHES}")
    database.execute("CREATE MACRO kernel_id(name) AS left(sha256(name), 10)")


def _link(table: Table, bundles: Sequence[Bundle], folder: Path) -> None:
    """Links the files of a table, beside one without rows, so that every view has its columns."""
    _write(_place(folder, -1, -1), empty_table(table.name))
    for number, bundle in enumerate(bundles):
        for name in bundle.meta.tables:
            kind, _, rank = name.removesuffix(".parquet").rpartition("-rank")
            if kind == table.name:
                os.symlink((bundle.path / name).absolute(), _place(folder, number, int(rank)))


def _view(
    database: duckdb.DuckDBPyConnection, name: str, columns: Sequence[TableColumn], folder: Path
) -> None:
    """The files in a folder as a view; one from before a column came has its default."""
    chosen = ", ".join(
        f't."{c.name}"'
        if c.default is None
        else f'coalesce(t."{c.name}", {_literal(c.default)}) AS "{c.name}"'
        for c in columns
    )
    database.execute(
        f"CREATE VIEW {name} AS SELECT b.bundle, t._rank AS rank, {chosen} FROM read_parquet("
        f"{_literal(f'{folder}/*/*/t.parquet')}, union_by_name = true, hive_partitioning = true, "
        "hive_types = {'_member': INTEGER, '_rank': INTEGER}) t "
        "JOIN bundles b ON t._member = b.member"
    )


def _place(folder: Path, member: int, rank: int) -> Path:
    place = folder / f"_member={member}" / f"_rank={rank}"
    place.mkdir(parents=True)
    return place / "t.parquet"


def _write(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd")


def _literal(value: str | int) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()  # true and false, as SQL has them


def _bundle_row(number: int, name: str, bundle: Bundle) -> tuple[int | str, ...]:
    facts = bundle.facts(bundle.ranks[0]) if bundle.ranks else {}
    gpu_name = mapping_in(facts, "gpu").get("name", "")
    meta = (str(getattr(bundle.meta, field)) for field in _FACTS)
    return (number, name, str(facts.get("model", "")), str(gpu_name), *meta)


_BATCH = 10_000
_LONGEST = 300
_SHARE_OF_MEMORY = 0.5
_ZONED = re.compile(r"""("(?:[^"]|"")*"|'(?:[^']|'')*')|TIMESTAMP(?:_NS)? WITH TIME ZONE""")
"""The type of a time with its time zone, in the name of a type; texts in quotes are names."""


@dataclass(frozen=True)
class QueryResult:
    """What a query finds; it runs when its rows are asked for."""

    columns: tuple[str, ...]  # their names, no two the same
    _database: duckdb.DuckDBPyConnection
    _sql: str
    _folder: Path

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows, once."""
        with _one_line(), interrupted_by(self._database.interrupt):
            self._database.execute(self._with_readable_times())
            while rows := self._database.fetchmany(_BATCH):
                yield from rows

    def write_parquet(self) -> Path:
        """Writes the rows to a file that is gone when the query ends."""
        path = self._folder / "result.parquet"
        with _one_line(), interrupted_by(self._database.interrupt):
            self._database.sql(self._sql).write_parquet(str(path), compression="zstd")
        return path

    def _with_readable_times(self) -> str:
        """The query, its times of a time zone as text: DuckDB needs pytz to hand out others."""
        relation = self._database.sql(self._sql)
        types = list(map(str, relation.types))
        texts = [_ZONED.sub(lambda match: match[1] or "VARCHAR", kind) for kind in types]
        if texts == types:
            return self._sql
        cast = (
            f"#{i}" if text == kind else f"CAST(#{i} AS {text})"
            for i, (kind, text) in enumerate(zip(types, texts, strict=True), 1)
        )  # fmt: skip
        return str(relation.project(", ".join(cast)).sql_query())


_NO_COLUMN = re.compile(r'column "([^"]{1,99})" not found')


@contextmanager
def query(bundles: Mapping[str, Bundle], sql: str) -> Iterator[QueryResult]:
    """Runs one SELECT, WITH, FROM, DESCRIBE, SHOW or SUMMARIZE statement over the bundles.

    The bundles are by the name that they have in the column `bundle`.
    """
    with temporary_folder("spark-prof-query-") as folder:
        memory = int(psutil.virtual_memory().total * _SHARE_OF_MEMORY)
        settings = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "memory_limit": f"{memory // 2**20}MiB",
            "threads": os.cpu_count() or 1,
            "temp_directory": str(folder / "spilled"),
        }
        with _one_line(), duckdb.connect(":memory:", config=settings) as database:
            _check(database, sql)
            words = set(re.findall(r"\w+", sql.lower()))
            create_views(database, bundles, folder / "tables", words)
            _lock(database, folder)
            # Only its names: every way of asking a relation for rows runs the query again.
            with _one_line(database), interrupted_by(database.interrupt):
                columns = database.sql(sql).columns
            yield QueryResult(_unique(columns), database, sql, folder)


def _check(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise CommandError(
            "a query is one SELECT, WITH, DESCRIBE, SHOW or SUMMARIZE statement; give one"
        )


def _lock(database: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Leaves only the folder and what its links point at to be read."""
    targets = [os.path.realpath(path) for path in folder.rglob("*.parquet") if path.is_symlink()]
    database.execute("SET python_enable_replacements = false")
    database.execute("SET allowed_paths = ?", [targets])
    database.execute("SET allowed_directories = ?", [[str(folder)]])
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


@contextmanager
def _one_line(database: duckdb.DuckDBPyConnection | None = None) -> Iterator[None]:
    """Says in one line what DuckDB says in several."""
    try:
        yield
    except duckdb.InterruptException:
        raise  # the signal's own exception follows
    except duckdb.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        has_hint = len(lines) > 1 and lines[1].startswith(("Did", "Candidate"))
        text = " ".join(lines[: 1 + has_hint])
        named = _NO_COLUMN.search(text)
        hint = _views_with(database, named[1]) if database is not None and named else ""
        raise CommandError(f"the query failed: {text[:_LONGEST]}{hint}") from error


def _views_with(database: duckdb.DuckDBPyConnection, column: str) -> str:
    """Which views have a column of that name."""
    views = database.execute(
        "SELECT DISTINCT table_name FROM information_schema.columns WHERE column_name = ? "
        "ORDER BY table_name",
        [column],
    ).fetchall()
    return f"; {column} is in {', '.join(name for (name,) in views)}" if views else ""


def _unique(names: list[str]) -> tuple[str, ...]:
    """The names, with a number behind those that are there already."""
    names_of_columns: dict[str, None] = {}
    for name in names:
        number, other = 2, name
        while other in names_of_columns:
            number, other = number + 1, f"{name}_{number}"
        names_of_columns[other] = None
    return tuple(names_of_columns)
