"""Reads files that may be compressed, and unpacks archives, trusting nothing that they say.

What a file is follows from its first bytes, not from its name: gzip (RFC 1952), Zstandard (RFC
8878), a zip or tar, else it is taken as it is. It is read as a stream of blocks in bounded memory.
Names in an archive cannot leave the folder, links and devices are refused, and the bytes that are
really written are counted: what an archive declares about itself is not believed.
"""

from __future__ import annotations

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

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
_UNREADABLE_FORMATS = {
    b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf": "7z",
}  # fmt: skip


@contextmanager
def open_stream(path: Path) -> Iterator[Iterator[bytes]]:
    """Gives the decompressed content of a file in blocks of at most 1 MiB, none of them empty.

    The next block is decompressed in a thread while the caller works on the last one. Zeros and
    other bytes that follow the end of a gzip stream are left out, as gunzip does.
    """
    try:
        with path.open("rb") as file, ThreadPoolExecutor(1) as pool:
            yield _ahead(pool, _bounded(path, file, _decompressed(path, file)))
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror or error})") from error


def read_whole(path: Path, most: int, way_out: str = "write it again") -> bytearray:
    """The content of a file, decompressed; one of more than `most` bytes is refused."""
    data = bytearray()
    with open_stream(path) as blocks:
        for block in blocks:
            data += block
            if len(data) > most:
                raise CommandError(f"{path} holds more than {most >> 20} MiB; {way_out}")
    return data


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
    for magic, name in _UNREADABLE_FORMATS.items():
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


_MOST_MEMBERS = 10_000
_MOST_BYTES = 64 << 30
_MEMBER_RATIO = 300
"""Traces are packed to a tenth or a fiftieth; below this many bytes any ratio does no harm."""
_DEEPEST = 16
_LONGEST_PART = 200
_MOST_HEADERS = 16 << 20
"""Bytes between two members of a tar: names and attributes, never more than kilobytes."""
_FINDER = "__MACOSX/"  # what macOS adds to a zip: attributes of the other files
_ZIP_MAGIC = (b"PK\3\4", b"PK\5\6")
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Others may want gigabytes before they give a byte."""
_UNIX, _REGULAR = 3, 8
_MOST_MEMBER_BYTES = 256 << 20  # of a file that is taken out alone
_ZIP_END = struct.Struct("<4s4H2LH")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_MOST_ZIP_INDEX = _MOST_MEMBERS * 1024

_DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError,
    OverflowError, NotImplementedError, RuntimeError, struct.error,
)  # fmt: skip
"""What zipfile and tarfile raise for archives that are broken, encrypted or of a rare kind."""


def unpacked(path: Path, into: Path) -> list[Path]:
    """Writes the files of an archive into a folder; archives among them stay packed."""
    files: list[Path] = []
    names: set[str] = set()
    try:
        with path.open("rb") as file:
            zipped = file.read(4) in _ZIP_MAGIC
        most = min(_MOST_BYTES, max(_HARMLESS, _MEMBER_RATIO * path.stat().st_size))
        left = most
        for name, content in _zip_files(path) if zipped else _tar_files(path):
            if name.startswith(_FINDER):
                continue
            if len(files) >= _MOST_MEMBERS:
                raise CommandError(
                    f"{path} holds more than {_MOST_MEMBERS:,} files; unpack it yourself"
                )
            parts = _parts(path, name)
            # Not every disk tells upper from lower case.
            key = "/".join(parts).casefold()
            if key in names:
                raise CommandError(f"{path} holds {name!r:.80} twice; refused")
            names.add(key)
            place = into.joinpath(*parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                while block := content.read(_BLOCK):
                    left -= len(block)
                    if left < 0:
                        raise CommandError(
                            f"{path} grows to more than {most >> 20:,} MiB when it is unpacked; "
                            "no archive of traces does, so it is refused"
                        )
                    file.write(block)
            files.append(place)
    except _DAMAGE as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise CommandError(f"{path} cannot be unpacked ({error.strerror or error})") from error
    if not files:
        raise CommandError(f"{path} holds no file")
    return sorted(files)


def _parts(archive: Path, name: str) -> tuple[str, ...]:
    """The folders and the name of a member, which lead nowhere else."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    bad = not parts or len(parts) > _DEEPEST or not name.isprintable()
    if bad or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise CommandError(f"{archive} holds {name!r:.80}, which is no name; refused")
    if name.startswith(("/", "\\")) or ".." in parts or parts[0][1:2] == ":":
        raise CommandError(f"{archive} holds {name!r:.80}, which leads out of its folder; refused")
    return parts


def is_zip_with(path: Path, name: str) -> bool:
    """Whether the file is a zip that holds a file of that name."""
    try:
        if not zipfile.is_zipfile(path) or _zip_index_size(path) > _MOST_ZIP_INDEX:
            return False
        with zipfile.ZipFile(path) as archive:
            return name in archive.namelist()
    except (*_DAMAGE, OSError):
        return False


def unpacked_member(path: Path, name: str, into: Path) -> None:
    """Writes one file of a zip to a path.

    unpacked_member(Path("example.zip"), "meta.json", Path("meta.json"))
    """
    try:
        for member, content in _zip_files(path):
            if member == name:
                data = content.read(_MOST_MEMBER_BYTES + 1)
                if len(data) > _MOST_MEMBER_BYTES:
                    break
                into.write_bytes(data)
                return
    except (*_DAMAGE, OSError) as error:
        raise _damaged(path, error) from error
    raise CommandError(f"{path} holds no {name:.80}, or it is too large")


def _zip_files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if _zip_index_size(path) > _MOST_ZIP_INDEX:
        raise CommandError(f"{path} lists more files than an archive of traces; unpack it yourself")
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            kind = member.external_attr >> 28
            if member.create_system == _UNIX and kind not in (0, _REGULAR):
                raise _not_a_file(path, member.filename)
            if member.compress_type not in _ZIP_METHODS:
                raise CommandError(f"{path} is packed in an unusual way; unpack it yourself")
            with archive.open(member) as content:
                yield member.filename, content


def _zip_index_size(path: Path) -> int:
    """Bytes of a zip's index, which the library reads as a whole; 0 where there is none."""
    size = path.stat().st_size
    tail = (1 << 16) + _ZIP_END.size + _ZIP64_END.size + 20
    with path.open("rb") as file:
        file.seek(max(0, size - tail))
        end = file.read()
    place, place64 = end.rfind(b"PK\5\6"), end.rfind(b"PK\6\6")
    index_size = 0
    if 0 <= place <= len(end) - _ZIP_END.size:
        index_size = _ZIP_END.unpack_from(end, place)[5]
        index_size = 0 if index_size == 0xFFFFFFFF else index_size
    if 0 <= place64 <= len(end) - _ZIP64_END.size:
        index_size = max(index_size, _ZIP64_END.unpack_from(end, place64)[8])
    return min(index_size, size)


def _tar_files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with open_stream(path) as blocks:
        stream = _Stream(path, blocks)
        with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as archive:  # type: ignore[call-overload]
            while member := archive.next():
                if member.isdir():
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or member.issparse() or member.size < 0:
                    raise _not_a_file(path, member.name)
                stream.left = _MOST_BYTES
                yield member.name, content
                archive.members.clear()  # the library keeps them all
                stream.left = _MOST_HEADERS


class _Stream:
    """What tarfile reads from; it gives no more bytes than are left to it."""

    def __init__(self, path: Path, blocks: Iterator[bytes]) -> None:
        self.left = _MOST_HEADERS
        self._path, self._blocks, self._block = path, blocks, b""

    def read(self, size: int) -> bytes:
        """The next bytes, fewer than `size` only at the end."""
        parts = []
        while size:
            if not self._block:
                self._block = next(self._blocks, b"")
                if not self._block:
                    break
            part, self._block = self._block[:size], self._block[size:]
            parts.append(part)
            size -= len(part)
            self.left -= len(part)
            if self.left < 0:
                raise CommandError(f"{self._path} is a tar whose headers have no end; refused")
        return b"".join(parts)


def _damaged(path: Path, error: Exception) -> CommandError:
    return CommandError(f"{path} is a damaged or unusual archive ({error}); copy it again")


def _not_a_file(path: Path, name: str) -> CommandError:
    return CommandError(f"{path} holds {name!r:.80}, a link, a device or a sparse file; refused")
