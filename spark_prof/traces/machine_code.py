"""Says of which instructions the kernels that ran are made.

Functions that ran are disassembled once, bounded in time, and reduced to counts of their opcodes.
Opcodes whose modifiers tell what was computed keep them, loads keep their width, all others are
counted by their first word. What was disassembled is kept in the user's cache under the hash of the
instructions and their architecture: what a file calls itself decides nothing, so nobody else's
bundle can put something wrong into it. A cache that cannot be read or written is done without.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.files import cache_folder
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.cubins import CUBINS_FOLDER
from spark_prof.traces.cuda_tools import ToolError, find_tool, missing_tool
from spark_prof.traces.demangle import demangled
from spark_prof.traces.readers.binary_utilities import count_opcodes
from spark_prof.traces.readers.cubin import Code, read_code
from spark_prof.traces.tables import TABLES, empty_frame

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
    """The cache; one that is damaged is removed, so that the next use begins anew."""
    folder = cache_folder()
    if folder is None:
        raise OSError("no home folder is known")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"opcodes-{_VERSION}.sqlite"
    with closing(sqlite3.connect(path, timeout=_PATIENCE_S)) as connection:
        try:
            connection.execute(_TABLE)
            connection.execute("SELECT key, opcodes FROM functions LIMIT 1").fetchall()
        except sqlite3.OperationalError:
            raise  # busy, or read only
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)
            raise
        yield connection


MOST_SECONDS = 60.0
"""How long functions are disassembled for one recording."""

_BATCH_BYTES = 32 << 20
_WHOLE = re.compile(
    r"(?:[A-Z]*MMA|U?F2FP|F2F|F2I|FRND|I2F|I2FP|IDP|MOVM|CALL)(?:\.|$)|HFMA2\.(?:MMA|BF16)"
)
"""Opcodes whose modifiers are kept."""
_LOADS = re.compile(r"(?:LDG|LDL|LDS|STG|STL|STS|LD|ST)\.")
_WIDTH = re.compile(r"\.([SU]?(?:8|16|64|128|256))(?=\.|$)")
_HASH = re.compile(r"[0-9a-f]{16}")


@dataclass
class MachineCode:
    """Rows of the `functions` table, and what could not be read, one line each."""

    rows: pd.DataFrame = field(default_factory=lambda: empty_frame("functions"))
    lost: list[str] = field(default_factory=list)


def machine_code_of(bundle: Bundle, seconds: float = MOST_SECONDS) -> MachineCode:
    """The functions of a bundle that ran; those that its table lacks are read from its cubins.

    Args:
        seconds: how long may be spent on disassembling what is not in the user's cache.
    """
    known = bundle.frame("functions", 0)
    cubins = bundle.frame("cubins", 0, ["hash", "functions"])
    there = set(zip(known["hash"], known["function"], strict=True))
    wanted: dict[Path, set[str]] = {}
    for key, functions in cubins.itertuples(index=False):
        missing = {name for name in functions.split("\n") if name and (key, name) not in there}
        path = bundle.path / CUBINS_FOLDER / f"{key}.cubin"
        if missing and _HASH.fullmatch(key) and path.is_file():
            wanted[path] = missing
    found = read_machine_code(wanted, seconds)
    if len(found.rows):
        found.rows = pd.concat([known, found.rows], ignore_index=True) if len(known) else found.rows
    else:
        found.rows = known
    return found


def read_machine_code(
    wanted: Mapping[Path, Collection[str] | None], seconds: float = MOST_SECONDS
) -> MachineCode:
    """Reads functions of cubins.

    Args:
        wanted: the cubins, named after their hash, and of each the symbols to read, all if None.
    """
    result = MachineCode()
    codes: list[tuple[str, Code]] = []
    for path, symbols in wanted.items():
        try:
            codes += [(path.stem, c) for c in read_code(path, symbols) if c.instructions]
        except CommandError as error:
            result.lost.append(f"machine code: {error}")
    opcodes = _opcodes([code for _, code in codes], time.monotonic() + seconds, result.lost)
    names = demangled(code.symbol for _, code in codes)
    rows = [
        (
            key, code.symbol, name, code.architecture, code.suffix,
            code.registers, len(code.instructions) // 16, text,
        )
        for (key, code), name, text in zip(codes, names, opcodes, strict=True)
        if text
    ]  # fmt: skip
    result.rows = pd.DataFrame(rows, columns=TABLES["functions"].schema.names)
    return result


def _opcodes(codes: list[Code], until: float, lost: list[str]) -> list[str]:
    """The opcodes of each function as text, from the cache or disassembled; empty if unknown."""
    keys = [function_key(code.architecture, code.instructions) for code in codes]
    known = cached(keys)
    new = {key: code for key, code in zip(keys, codes, strict=True) if key not in known}
    tool = find_tool("nvdisasm") if new else None
    if new and tool is None:
        lost.append(f"machine code of {_kernels(new)} was not read: {missing_tool('nvdisasm')}")
    elif tool is not None:
        known |= _disassembled(tool, new, until, lost)
    return [known.get(key, "") for key in keys]


def _disassembled(
    tool: Path, codes: Mapping[str, Code], until: float, lost: list[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for architecture, keys in _batches(codes):
        if not architecture:
            lost.append(f"machine code of {_kernels(keys)} names no architecture")
            continue
        left = until - time.monotonic()
        try:
            if left <= 0:
                raise ToolError("there was no time left")
            texts = count_opcodes(tool, architecture, [codes[k].instructions for k in keys], left)
        except ToolError as error:
            lost.append(f"machine code of {_kernels(keys)} for {architecture}: {error}")
            continue
        done = {key: _text(counts) for key, counts in zip(keys, texts, strict=True) if counts}
        if len(done) < len(keys):
            unread = [codes[key].symbol for key in keys if key not in done]
            lost.append(
                f"machine code of {_kernels(unread)} is damaged or newer than nvdisasm, such as "
                f"{unread[0]:.60}"
            )
        remember(done)
        found |= done
    return found


def _kernels(kernels: Sized) -> str:
    return f"{len(kernels)} kernel{'s' * (len(kernels) > 1)}"


def _batches(codes: Mapping[str, Code]) -> Iterable[tuple[str, list[str]]]:
    """Keys of functions of one architecture, not too many at a time."""
    for architecture in sorted({code.architecture for code in codes.values()}):
        keys: list[str] = []
        size = 0
        for key, code in codes.items():
            if code.architecture != architecture:
                continue
            if keys and size + len(code.instructions) > _BATCH_BYTES:
                yield architecture, keys
                keys, size = [], 0
            keys.append(key)
            size += len(code.instructions)
        if keys:
            yield architecture, keys


def _text(counts: Mapping[str, int]) -> str:
    """One line an opcode with its count, the most frequent first."""
    short: Counter[str] = Counter()
    for opcode, count in counts.items():
        short[short_opcode(opcode)] += count
    return "\n".join(
        f"{name} {n}" for name, n in sorted(short.items(), key=lambda i: (-i[1], i[0]))
    )


def short_opcode(opcode: str) -> str:
    """An opcode as it is counted: with all modifiers, with its width, or without either."""
    if _WHOLE.match(opcode):
        return opcode
    base = opcode.partition(".")[0]
    width = _WIDTH.search(opcode) if _LOADS.match(opcode) else None
    return f"{base}.{width[1]}" if width else base
