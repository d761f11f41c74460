"""Keeps what was disassembled in the user's cache, so that nothing is disassembled twice.

A function's key is the hash of its instructions and its architecture: what a file calls itself
decides nothing, and so nobody else's bundle can put something wrong into the cache. A cache that
cannot be read or written is done without.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_VERSION = 1
"""Raised when other counts are kept; it is part of the file's name."""
_MOST_ROWS = 200_000
_AT_ONCE = 500
_PATIENCE_S = 2.0
_TABLE = "CREATE TABLE IF NOT EXISTS functions (key TEXT PRIMARY KEY, opcodes TEXT NOT NULL)"


def function_key(architecture: str, instructions: bytes) -> str:
    """What a function's code is kept under."""
    return hashlib.sha256(architecture.encode() + b"\0" + instructions).hexdigest()[:32]


def cached(keys: Sequence[str]) -> dict[str, str]:
    """The opcodes of those functions that are known, by key."""
    found: dict[str, str] = {}
    with suppress(sqlite3.Error, OSError), _open() as connection:
        for at in range(0, len(keys), _AT_ONCE):
            part = keys[at : at + _AT_ONCE]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, opcodes FROM functions WHERE key IN ({marks})"
            found |= {
                key: text
                for key, text in connection.execute(query, part)
                if isinstance(key, str) and isinstance(text, str)
            }
    return found


def remember(opcodes: Mapping[str, str]) -> None:
    """Keeps the opcodes of functions by key; the oldest ones make room."""
    with suppress(sqlite3.Error, OSError), _open() as connection, connection:
        connection.executemany("REPLACE INTO functions VALUES (?, ?)", opcodes.items())
        connection.execute(
            "DELETE FROM functions WHERE rowid <= (SELECT max(rowid) FROM functions) - ?",
            (_MOST_ROWS,),
        )


@contextmanager
def _open() -> Iterator[sqlite3.Connection]:
    """The cache; one that is damaged is replaced by an empty one."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(2):
        connection = sqlite3.connect(path, timeout=_PATIENCE_S)
        with closing(connection):
            try:
                connection.execute(_TABLE)
                connection.execute("SELECT key, opcodes FROM functions LIMIT 1").fetchall()
            except sqlite3.OperationalError:
                raise  # busy, or read only
            except sqlite3.DatabaseError:
                if attempt:
                    raise
                path.unlink(missing_ok=True)
                continue
            yield connection
            return


def _path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or ""
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return folder / "spark-prof" / f"opcodes-{_VERSION}.sqlite"
