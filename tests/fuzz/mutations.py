"""Damages one file of a fixture: as what it holds, or as bytes.

Every mutation is drawn from a `Random`, so that a case can be made again from its number.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa

from tests.fuzz.json_mutations import mutate_json
from tests.fuzz.parquet_mutations import mutate_table
from tests.fuzz.sqlite_mutations import mutate_sqlite
from tests.fuzz.text_mutations import mutate_text

_AS_BYTES = 0.3
"""Share of the cases that know nothing of the format."""


def mutate(path: Path, chance: Random) -> str:
    """Damages the file; returns what was done, for whoever looks at a failure."""
    data = path.read_bytes()
    by_bytes = chance.random() < _AS_BYTES
    if not by_bytes and data.startswith(b"SQLite format 3\0"):
        return mutate_sqlite(path, chance)
    if not by_bytes and data.startswith(b"PAR1"):
        return mutate_table(path, chance)
    packed = next((p for p in _PACKINGS if data.startswith(p.magic)), None)
    if packed and chance.random() < 0.85:
        inner, done = _content(packed.unpack(data), chance, by_bytes)
        path.write_bytes(packed.pack(inner))
    elif packed and data.startswith(b"\x1f\x8b") and chance.random() < 0.5:
        changed, done = _gzip_damage(data, chance)
        path.write_bytes(changed)
    else:
        changed, done = _content(data, chance, by_bytes or packed is not None)
        path.write_bytes(changed)
    return done


def _content(data: bytes, chance: Random, by_bytes: bool) -> tuple[bytes, str]:
    """Content without compression, damaged."""
    if not by_bytes:
        if data[:1] in (b"{", b"["):
            lines = [line for line in data.split(b"\n") if line]
            if len(lines) > 1 and all(line[:1] == b"{" for line in (lines[0], lines[-1])):
                number = chance.randrange(len(lines))
                lines[number], done = mutate_json(lines[number], chance)
                return b"\n".join(lines), done
            return mutate_json(data, chance)
        if b"\0" not in data[:4096]:
            return mutate_text(data, chance)
    done = []
    for _ in range(chance.choice((1, 1, 2, 4))):
        mutation = chance.choice(_BYTE_MUTATIONS)
        done.append(mutation.__name__[1:])
        data = mutation(data or b"\0", chance)
    return data, "bytes: " + ", ".join(done)


def _span(data: bytes, chance: Random) -> tuple[int, int]:
    begin = chance.randrange(len(data))
    return begin, min(len(data), begin + chance.choice((1, 4, 64, 1024, 65536)))


def _cut(data: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _flip(data: bytes, chance: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 3, 20))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _delete(data: bytes, chance: Random) -> bytes:
    begin, end = _span(data, chance)
    return data[:begin] + data[end:]


def _duplicate(data: bytes, chance: Random) -> bytes:
    begin, end = _span(data, chance)
    return data[:end] + data[begin:]


def _swap(data: bytes, chance: Random) -> bytes:
    (a, b), (c, d) = sorted((_span(data, chance), _span(data, chance)))
    return data if c < b else data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _overwrite(data: bytes, chance: Random) -> bytes:
    begin, end = _span(data, chance)
    filling = chance.choice((b"\0", b"\xff", b" ", b"9", b'"', b"[", b"\x80", b"\n"))
    return data[:begin] + filling * (end - begin) + data[end:]


def _noise(data: bytes, chance: Random) -> bytes:
    begin, end = _span(data, chance)
    return data[:begin] + chance.randbytes(end - begin) + data[end:]


def _append(data: bytes, chance: Random) -> bytes:
    return data + chance.choice((b"\0" * 512, b"}", b"garbage", data[:4096]))


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
    word = chance.choice(
        (b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 8, b"\0" * 8, b"\0\0\0\x40")
    )
    return data[:at] + word + data[at + len(word) :]


_BYTE_MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _cut, _cut, _flip, _flip, _delete, _duplicate, _swap, _overwrite, _noise, _append, _digits,
    _word, _word,
)  # fmt: skip


def _gzip_damage(data: bytes, chance: Random) -> tuple[bytes, str]:
    """What can be wrong with the container alone."""
    kind = chance.randrange(5)
    if kind == 0:
        return data[:-8] + chance.randbytes(8), "wrong CRC and size"
    if kind == 1:
        return data + chance.choice((b"garbage", b"\0" * 100, data[:40])), "trailing bytes"
    if kind == 2:
        return data + data, "the same member twice"
    if kind == 3:
        return data[:10] + b"\0" + data[10:], "a byte too many"
    return gzip.compress(data, mtime=0), "compressed twice"


class _Packing:
    """A compression of files."""

    def __init__(
        self, magic: bytes, unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes]
    ) -> None:
        self.magic, self.unpack, self.pack = magic, unpack, pack


def _gunzip(data: bytes) -> bytes:
    return zlib.decompress(data, wbits=31)


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def _unzstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        content: bytes = stream.read()
    return content


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


_PACKINGS = (
    _Packing(b"\x1f\x8b", _gunzip, _gzip),
    _Packing(b"\x28\xb5\x2f\xfd", _unzstd, _zstd),
)
