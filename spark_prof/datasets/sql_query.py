"""Runs one SQL query over the tables of many bundles, in memory, locked away from everything else.

After the views are made DuckDB may read no other file, load no extension and change no setting;
see https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psutil

from spark_prof.datasets.sql_views import create_views
from spark_prof.ending import interrupted_by, temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle

_BATCH = 10_000
_LONGEST = 300
_SHARE_OF_MEMORY = 0.5
_ZONED = re.compile(r"""("(?:[^"]|"")*"|'(?:[^']|'')*')|TIMESTAMP(?:_NS)? WITH TIME ZONE""")
"""The type of a time with its time zone, in the name of a type; texts in quotes are names."""

_WRITTEN = "result.parquet"


@dataclass(frozen=True)
class Result:
    """What a query finds; it runs when its rows are asked for."""

    columns: tuple[str, ...]  # their names, no two the same
    _database: duckdb.DuckDBPyConnection
    _sql: str
    _folder: Path

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows, once.

        Raises:
            CommandError: the query fails while it runs.
        """
        with _one_line(), interrupted_by(self._database.interrupt):
            self._database.execute(self._with_readable_times())
            while rows := self._database.fetchmany(_BATCH):
                yield from rows

    def write_parquet(self) -> Path:
        """Writes the rows to a file that is gone when the query ends.

        Raises:
            CommandError: the query fails while it runs.
        """
        path = self._folder / _WRITTEN
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
def query(bundles: Mapping[str, Bundle], sql: str) -> Iterator[Result]:
    """Runs one SELECT over the bundles.

    Args:
        bundles: the bundles by the name that they have in the column `bundle`.
        sql: one SELECT, WITH, FROM, DESCRIBE, SHOW or SUMMARIZE statement.

    Raises:
        CommandError: it is none of these, or DuckDB refuses it.
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
            yield Result(_unique(columns), database, sql, folder)


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
        more = len(lines) > 1 and lines[1].startswith(("Did", "Candidate"))
        text = " ".join(lines[: 1 + more])
        named = _NO_COLUMN.search(text)
        known = _views_with(database, named[1]) if database is not None and named else ""
        raise CommandError(f"the query failed: {text[:_LONGEST]}{known}") from error


def _views_with(database: duckdb.DuckDBPyConnection, column: str) -> str:
    """Which views have a column of that name."""
    found = database.execute(
        "SELECT DISTINCT table_name FROM information_schema.columns WHERE column_name = ? "
        "ORDER BY table_name",
        [column],
    ).fetchall()
    return f"; {column} is in {', '.join(name for (name,) in found)}" if found else ""


def _unique(names: list[str]) -> tuple[str, ...]:
    """The names, with a number behind those that are there already."""
    found: dict[str, None] = {}
    for name in names:
        number, other = 2, name
        while other in found:
            number, other = number + 1, f"{name}_{number}"
        found[other] = None
    return tuple(found)
