"""Damages one file of a fixture: as what it holds, or as bytes.

Every mutation is drawn from a `Random`, so that a case can be made again from its number.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.hostile import NUMBERS, TEXTS, hostile_text, hostile_value

_AS_BYTES = 0.3
"""Share of the cases that know nothing of the format."""

_NEST = "@nest@"
_SAFE_TEXTS = [text.encode("utf-8", "replace").decode() for text in TEXTS]


def mutate(path: Path, chance: Random) -> str:
    """Damages the file; returns what was done, for whoever looks at a failure."""
    data = path.read_bytes()
    by_bytes = chance.random() < _AS_BYTES
    if not by_bytes and data.startswith(b"SQLite format 3\0"):
        return _sqlite(path, chance)
    if not by_bytes and data.startswith(b"PAR1"):
        return _parquet(path, chance)
    unpack, pack = next((p for m, *p in _PACKINGS if data.startswith(m)), (None, None))
    if unpack and pack and chance.random() < 0.8:
        changed, done = _content(unpack(data), chance, by_bytes)
        changed = pack(changed)
    else:
        changed, done = _content(data, chance, by_bytes or unpack is not None)
    path.write_bytes(changed)
    return done


def _content(data: bytes, chance: Random, by_bytes: bool) -> tuple[bytes, str]:
    """Content without compression, damaged."""
    kinds = _BYTES
    if not by_bytes:
        if data[:1] in (b"{", b"["):
            lines = [line for line in data.split(b"\n") if line]
            if len(lines) > 1 and lines[0][:1] == lines[-1][:1] == b"{":
                number = chance.randrange(len(lines))
                lines[number], done = _json(lines[number], chance)
                return b"\n".join(lines), done
            return _json(data, chance)
        kinds = _TEXT if b"\0" not in data[:4096] else _BYTES
    done = []
    for _ in range(chance.choice((1, 1, 2, 4))):
        mutation = chance.choice(kinds)
        done.append(mutation.__name__[1:])
        data = mutation(data or b"\0", chance)
    return data, ", ".join(done)


def _json(text: bytes, chance: Random) -> tuple[bytes, str]:
    """The text with some of its values changed; it is still JSON, or nearly."""
    value, done = json.loads(text), []
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return b"[" * 100_000, "only brackets"
        container, key = chance.choice(places)
        same = [(c, k) for c, k in places if k == key and isinstance(c, dict)]
        kind, one = chance.randrange(9), hostile_value(chance)
        done.append(f"{kind} {key!r:.40}")
        if kind == 0:
            del container[key]
        elif kind == 1:
            container[key] = _NEST
        elif kind == 2:
            lists = [c[k] for c, k in places if isinstance(c[k], list)] or [[]]
            items = chance.choice(lists)
            chance.shuffle(items)
            items += items[: chance.choice((0, 1, len(items)))]
        elif kind == 3 and isinstance(container, dict):
            container[hostile_text(chance)] = container.pop(key)
        elif kind in (4, 5):  # ids are duplicates then
            for c, k in same:
                c[k] = one
        elif kind in (6, 7):
            for c, k in same:
                negative = kind == 7 and isinstance(c[k], (int, float))
                if negative or chance.random() < 0.3:
                    c[k] = -c[k] if negative else hostile_value(chance)
        else:
            container[key] = one
    written = json.dumps(value, ensure_ascii=chance.random() < 0.7).encode(errors="replace")
    depth = chance.choice((50, 2_000, 100_000))
    begin, end = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")))
    nested = begin * depth + b"1" + end * depth
    return written.replace(f'"{_NEST}"'.encode(), nested, 1), ", ".join(done)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value below this one, as its container and key."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        found = container.items() if isinstance(container, dict) else enumerate(container)
        for key, item in found if isinstance(container, (dict, list)) else ():
            yield container, key
            if isinstance(item, (dict, list)):
                waiting.append(item)


def _sqlite(path: Path, chance: Random) -> str:
    """Cells of other types, lost tables, and a view that makes rows without end."""
    connection, done = sqlite3.connect(path), ""
    try:
        for _ in range(chance.choice((1, 2, 4))):
            tables = [r[0] for r in connection.execute("SELECT name FROM sqlite_master")]
            table = chance.choice(tables or [""])
            columns = [r[1] for r in connection.execute(f'PRAGMA table_info("{table}")')]
            if columns:
                sql = chance.choice(_STATEMENTS).format(
                    t=table, c=chance.choice(columns), n=chance.choice((1, 2, 7, 50)),
                    o=chance.choice(("start", "end", "text", "globalTid", "value", "x y")),
                    v=", ".join(f'n AS "{name}"' for name in columns),
                )  # fmt: skip
                done += sql + "; "
                for part in sql.split("; "):
                    connection.execute(part, [_cell(chance)] * part.count("?"))
        connection.commit()
    except sqlite3.Error as error:
        done += f"refused: {error}"
    finally:
        connection.close()
    return done


_UPDATE = 'UPDATE "{t}" SET "{c}" = ? WHERE rowid % {n} = 0'
_STATEMENTS = (
    *[_UPDATE] * 4, 'UPDATE "{t}" SET "{c}" = -"{c}"', 'UPDATE "{t}" SET "{c}" = random()',
    'INSERT INTO "{t}" SELECT * FROM "{t}" LIMIT 500', 'DROP TABLE "{t}"',
    'DELETE FROM "{t}" WHERE rowid % {n} = 0', 'ALTER TABLE "{t}" RENAME COLUMN "{c}" TO "{o}"',
    'DROP TABLE "{t}"; CREATE VIEW "{t}" AS WITH RECURSIVE c(n) AS '
    "(SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT {v} FROM c",
)  # fmt: skip


def _cell(chance: Random) -> Any:
    number = chance.choice(NUMBERS)
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        number = str(number)  # SQLite holds integers of 64 bits
    noise = chance.randbytes(chance.choice((0, 3, 3000)))
    return chance.choice((None, chance.choice(_SAFE_TEXTS), noise, number))


def _parquet(path: Path, chance: Random) -> str:
    """Changes a table, and most times meta.json beside it so that it agrees on the rows."""
    table = pq.read_table(path, partitioning=None)
    number, kind = chance.randrange(table.num_columns), chance.randrange(12)
    name, field, rows = table.column_names[number], table.schema.field(number), table.num_rows
    if kind == 0:
        table = table.remove_column(number)
    elif kind == 1:
        table = pa.concat_tables([table, table])
    elif kind == 2:
        order = chance.sample(range(rows), chance.choice((0, min(1, rows), rows)))
        table = table.take(pa.array(order, pa.int64()))
    elif kind == 3:
        table = table.select(chance.sample(table.column_names, table.num_columns))
    elif kind == 4:
        other = chance.choice((pa.string(), pa.float64(), pa.int8(), pa.list_(pa.int64())))
        table = table.set_column(number, name, pa.nulls(rows, other))
    elif kind == 5:
        alike = [i for i, f in enumerate(table.schema) if f.type == field.type]
        table = table.set_column(number, field, table.column(chance.choice(alike)))
    else:
        share, one = chance.choice((0.02, 0.3, 1.0)), _extreme(field.type, chance)
        values = [
            value
            if chance.random() >= share
            else one if kind < 9 else _extreme(field.type, chance)
            for value in table.column(number).to_pylist()
        ]  # fmt: skip
        values = [None] * rows if kind == 6 else values
        texts = pa.types.is_dictionary(field.type)
        array = pa.array(values, pa.string() if texts else field.type)
        array = array.dictionary_encode().cast(field.type) if texts else array
        table = table.set_column(number, field, array)
    pq.write_table(table, path)
    meta = path.with_name("meta.json")
    if meta.is_file() and chance.random() < 0.9:
        value = json.loads(meta.read_text())
        value["tables"][path.name] = table.num_rows
        meta.write_text(json.dumps(value))
    return f"{kind} {name}"


def _extreme(kind: pa.DataType, chance: Random) -> object:
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_floating(kind):
        return float(chance.choice([n for n in NUMBERS if isinstance(n, float) or n < 2**1023]))
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        fitting = [n for n in NUMBERS if isinstance(n, int) and -most <= n < most]
        return chance.choice([*fitting, -most, most - 1])
    return chance.choice(_SAFE_TEXTS) * (5000 if chance.random() < 0.02 else 1)


def _line(data: bytes, chance: Random) -> bytes:
    """A line is lost, repeated, or moved to another place."""
    lines = data.split(b"\n")
    line = lines.pop(chance.randrange(len(lines)))
    at = chance.randrange(len(lines) + 1)
    lines[at:at] = [line] * chance.choice((0, 1, 2, min(1000, 1 + (4 << 20) // (len(line) + 1))))
    return b"\n".join(lines)


def _column(data: bytes, chance: Random) -> bytes:
    """One cell, or those of a whole column, become hostile; or there are many more columns."""
    lines = data.split(b"\n")
    number, whole = chance.randrange(12), chance.random() < 0.4
    text = hostile_text(chance) if chance.random() < 0.5 else str(chance.choice(NUMBERS))
    text = '"' + text.replace('"', '""') + '"' if chance.random() < 0.5 else text
    for at in range(len(lines)) if whole else [chance.randrange(len(lines))]:
        cells = lines[at].split(b",")
        cells[number % len(cells)] = text.encode(errors="replace")
        more = b"," * chance.choice((0, 0, 0, 300, 1_000_000)) if not whole else b""
        lines[at] = b",".join(cells) + more
    return b"\n".join(lines)


def _encoding(data: bytes, chance: Random) -> bytes:
    kind = chance.choice(("utf-16", "latin-1", "utf-8-sig"))
    return data.decode("utf-8", "replace").encode(kind, "replace")


def _cut(data: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _flip(data: bytes, chance: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 3, 20))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _splice(data: bytes, chance: Random) -> bytes:
    """A stretch is deleted, doubled, or overwritten by one byte or noise."""
    begin, size = chance.randrange(len(data)), chance.choice((1, 4, 64, 1024, 65536))
    old = data[begin : begin + size]
    fill = chance.choice((b"\0", b"\xff", b" ", b"9", b'"', b"[", b"\x80", b"\n")) * len(old)
    new = chance.choice((b"", old + old, fill, chance.randbytes(len(old))))
    return data[:begin] + new + data[begin + size :]


def _append(data: bytes, chance: Random) -> bytes:
    return data + chance.choice((b"\0" * 512, b"}", b"garbage", data[:4096], data))


def _digits(data: bytes, chance: Random) -> bytes:
    """A number in the text becomes one that no program expects."""
    numbers = list(re.finditer(rb"-?\d+", data[: 1 << 20]))
    if not numbers:
        return _flip(data, chance)
    found = chance.choice(numbers)
    other = chance.choice((b"NaN", b"-1", b"1e308", b"9" * 5000, b"Infinity", b"0x7f", b"007"))
    return data[: found.start()] + other + data[found.end() :]


def _word(data: bytes, chance: Random) -> bytes:
    """Four or eight bytes, as numbers and sizes stand in binary files, become extreme."""
    at = chance.randrange(len(data)) & ~3
    words = (b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 8, b"\0" * 8, b"\0\0\0\x40")
    word = chance.choice(words)
    return data[:at] + word + data[at + len(word) :]


Mutation = Callable[[bytes, Random], bytes]
_BYTES: tuple[Mutation, ...] = (_cut, _flip, _splice, _splice, _append, _digits, _word)
_TEXT: tuple[Mutation, ...] = (_line, _column, _column, _digits, _encoding, _splice)


def _unzstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


_PACKINGS: tuple[tuple[bytes, Callable[[bytes], bytes], Callable[[bytes], bytes]], ...] = (
    (b"\x1f\x8b", lambda d: zlib.decompress(d, wbits=31), lambda d: gzip.compress(d, 1, mtime=0)),
    (b"\x28\xb5\x2f\xfd", _unzstd, _zstd),
)
