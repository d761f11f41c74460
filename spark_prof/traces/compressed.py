"""Reads a file that may be compressed as a stream of blocks, in bounded memory.

What a file is follows from its first bytes, not from its name: gzip (RFC 1952), Zstandard (RFC
8878), else it is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
from isal import igzip_lib

from spark_prof.errors import CommandError

_BLOCK = 1 << 20
_READ = 1 << 17

_RATIO = 1000
_HARMLESS = 256 << 20
"""Nobody's trace is compressed by more than that ratio; below this many bytes it does no harm."""

_IsalError = cast(type[Exception], igzip_lib.IsalError)
"""Its stub says that it is an exception rather than a class of them."""

_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHERS = {
    b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf": "7z",
}  # fmt: skip


@contextmanager
def open_stream(path: Path) -> Iterator[Iterator[bytes]]:
    """Gives the decompressed content of a file in blocks of at most 1 MiB, none of them empty.

    The next block is decompressed in a thread while the caller works on the last one. Zeros and
    other bytes that follow the end of a gzip stream are left out, as gunzip does.

    Raises:
        CommandError: the file cannot be read, ends early, is damaged, or would fill the machine;
            from the blocks too.
    """
    try:
        with path.open("rb") as file, ThreadPoolExecutor(1) as pool:
            yield _ahead(pool, _bounded(path, file, _decompressed(path, file)))
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror or error})") from error


def _ahead(pool: ThreadPoolExecutor, blocks: Iterator[bytes]) -> Iterator[bytes]:
    coming = pool.submit(next, blocks, b"")
    while block := coming.result():
        coming = pool.submit(next, blocks, b"")
        yield block


def _bounded(path: Path, file: BinaryIO, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks that hold anything, as long as they are in proportion to the file."""
    size = 0
    for block in blocks:
        size += len(block)
        if size > _HARMLESS and size > _RATIO * file.tell():
            raise CommandError(
                f"{path} grows to more than {_RATIO} times its size when it is unpacked; "
                "no trace does, so it is refused"
            )
        if block:
            yield block


def _decompressed(path: Path, file: BinaryIO) -> Iterator[bytes]:
    start = file.read(8)
    file.seek(0)
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise CommandError(f"{path} is a {name} file; unpack it first, or use .gz or .zst")
    if start.startswith(_GZIP):
        return _gunzipped(path, file)
    if start.startswith(_ZSTANDARD):
        return _from_zstandard(path, file)
    return iter(lambda: file.read(_BLOCK), b"")


def _gunzipped(path: Path, file: BinaryIO) -> Iterator[bytes]:
    data = file.read(_READ)
    while data.startswith(_GZIP):  # a file may hold several streams one after another
        decoder = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not decoder.eof:
            try:
                yield decoder.decompress(data, _BLOCK)
            except _IsalError as error:
                raise CommandError(f"{path} is a damaged gzip file ({error})") from error
            data = file.read(_READ) if decoder.needs_input and not decoder.eof else b""
            if decoder.needs_input and not decoder.eof and not data:
                raise CommandError(f"{path} ends before its gzip stream does; copy it again")
        data = (decoder.unused_data + file.read(_READ)).lstrip(b"\0")


def _from_zstandard(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd") as stream:
            while block := stream.read(_BLOCK):
                yield block
    except OSError as error:
        raise CommandError(f"{path} is a damaged or cut zstd file ({error})") from error
