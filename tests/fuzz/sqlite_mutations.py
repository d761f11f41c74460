"""Mutations of an SQLite file through SQL: cells of other types, lost tables, cycles."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.hostile import NUMBERS, TEXTS


def mutate_sqlite(path: Path, chance: Random) -> str:
    """Changes the file; returns what was done."""
    connection = sqlite3.connect(path)
    done = []
    try:
        for _ in range(chance.choice((1, 2, 4))):
            tables = [r[0] for r in connection.execute("SELECT name FROM sqlite_master")]
            if not tables:
                break
            table = chance.choice(tables)
            columns = [r[1] for r in connection.execute(f'PRAGMA table_info("{table}")')]
            mutation = chance.choice(_MUTATIONS)
            if columns:
                column = chance.choice(columns)
                done.append(f"{mutation.__name__[1:]} {table}.{column}")
                mutation(connection, table, column, chance)
        connection.commit()
    except sqlite3.Error as error:
        done.append(f"refused: {error}")
    finally:
        connection.close()
    return ", ".join(done)


def _safe(value: Any) -> Any:
    """SQLite holds integers of 64 bits; larger ones are given as text."""
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _update(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    where = f"rowid % {chance.choice((1, 2, 7, 50))} = 0"
    sql = f'UPDATE "{table}" SET "{column}" = ? WHERE {where}'
    connection.execute(sql, [_safe(_random(chance))])


def _random(chance: Random) -> Any:
    kind = chance.randrange(4)
    if kind == 0:
        return None
    if kind == 1:
        return chance.choice(TEXTS).encode("utf-8", "replace").decode()
    if kind == 2:
        return chance.randbytes(chance.choice((0, 3, 3000)))
    return chance.choice(NUMBERS)


def _negate(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    connection.execute(f'UPDATE "{table}" SET "{column}" = -"{column}"')


def _spread(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    """Numbers that lie all over the 64 bits."""
    connection.execute(f'UPDATE "{table}" SET "{column}" = random()')


def _duplicate(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" LIMIT 500')


def _drop(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    connection.execute(f'DROP TABLE "{table}"')


def _empty(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    connection.execute(f'DELETE FROM "{table}" WHERE rowid % {chance.choice((1, 2))} = 0')


def _rename(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    other = chance.choice(("start", "end", "text", "globalTid", "value", "x y"))
    connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{other}"')


def _view(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    """A view in place of the table, which would make rows without end."""
    columns = [r[1] for r in connection.execute(f'PRAGMA table_info("{table}")')]
    connection.execute(f'DROP TABLE "{table}"')
    values = ", ".join(f'n AS "{name}"' for name in columns)
    connection.execute(
        f'CREATE VIEW "{table}" AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)'
        f" SELECT {values} FROM c"
    )


def _cycle(connection: sqlite3.Connection, table: str, column: str, chance: Random) -> None:
    """Nodes of graphs that are clones of each other."""
    named = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
    for name in named:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [name]).fetchone():
            connection.execute(
                f'UPDATE "{name}" SET originalGraphNodeId = (SELECT graphNodeId FROM "{name}"'
                f' AS o WHERE o.rowid > "{name}".rowid OR o.rowid = 1 LIMIT 1)'
            )


_MUTATIONS: tuple[Callable[[sqlite3.Connection, str, str, Random], None], ...] = (
    _update, _update, _update, _update, _negate, _spread, _duplicate, _drop, _empty, _rename,
    _view, _cycle,
)  # fmt: skip
