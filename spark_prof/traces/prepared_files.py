"""The files of a prepared recording: written by one process, checked and mapped by another.

A small file begins with the SHA-256 of what follows. An array is a NumPy file. The file `whole`
comes last and has the size and checksum of every array, so that what a power cut, a full disk or
a stranger has changed is told from what was written. Nothing in them is executed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from spark_prof.traces.durable import write_whole
from spark_prof.traces.prepared_folders import WHOLE_FILE

__all__ = ["DamagedError", "FilesReader", "FilesWriter", "clear", "is_whole", "read_small"]

Array = npt.NDArray[Any]

_MOST_SMALL = 1 << 30
_BLOCK = 1 << 20


class DamagedError(Exception):
    """A file is not as it was written."""


class _File(msgspec.Struct, frozen=True):
    bytes: int
    crc32: int


class FilesWriter:
    """Writes the files of a folder.

    Args:
        folder: an empty folder, whose lock the caller holds.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays: dict[str, _File] = {}

    def small(self, name: str, content: bytes) -> None:
        """Writes a small file whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        digest = hashlib.sha256(content).digest()
        write_whole(self._folder / name, lambda file: file.write(digest + content))

    def array(self, name: str, values: Array) -> None:
        """Writes an array of one dimension.

        Raises:
            OSError: it cannot be written.
        """
        path = self._folder / f"{name}.npy"
        with path.open("wb") as file:
            np.save(file, values, allow_pickle=False)
        self._arrays[name] = _File(path.stat().st_size, _crc32(path))

    def finish(self) -> None:
        """Says that all files are there.

        Raises:
            OSError: that cannot be written.
        """
        self.small(WHOLE_FILE, msgspec.msgpack.encode(self._arrays))


class FilesReader:
    """Reads the files of a whole folder.

    Args:
        folder: the folder.

    Raises:
        DamagedError: it is not whole.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = read_small(folder / WHOLE_FILE)
        try:
            self._arrays = msgspec.msgpack.decode(content or b"", type=dict[str, _File])
        except msgspec.MsgspecError as error:
            raise DamagedError(f"{folder / WHOLE_FILE}: {error}") from error

    def small(self, name: str) -> bytes:
        """The content of a small file.

        Raises:
            DamagedError: it is missing or not as it was written.
        """
        content = read_small(self._folder / name)
        if content is None:
            raise DamagedError(f"{self._folder / name} is missing or damaged")
        return content

    def array(self, name: str, dtype: npt.DTypeLike, rows: int | None = None) -> Array:
        """An array of one dimension, mapped into memory.

        Args:
            name: as it was written.
            dtype: its type.
            rows: how many it has, any number if None.

        Raises:
            DamagedError: it is missing, or not as it was written.
        """
        path = self._folder / f"{name}.npy"
        known = self._arrays.get(name)
        try:
            if known is None or path.stat().st_size != known.bytes or _crc32(path) != known.crc32:
                raise DamagedError(f"{path} is not as it was written")
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, OverflowError, EOFError, TokenError, MemoryError) as error:
            raise DamagedError(f"{path}: {error}") from error
        if not isinstance(found, np.ndarray) or found.dtype != np.dtype(dtype) or found.ndim != 1:
            raise DamagedError(f"{path} holds another array")
        if rows is not None and len(found) != rows:
            raise DamagedError(f"{path} has {len(found)} rows, not {rows}")
        # As the base class: what is sliced from it is no file any more.
        return found.view(np.ndarray)


def is_whole(folder: Path) -> bool:
    """Whether the folder says that all its files were written; it counts as used from now on."""
    try:
        os.utime(folder / WHOLE_FILE)
    except OSError:
        return False
    return True


def read_small(path: Path) -> bytes | None:
    """The content of a small file; None where it is missing or not as it was written."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_SMALL)
    except OSError:
        return None
    digest, content = content[:32], content[32:]
    return content if hashlib.sha256(content).digest() == digest else None


def clear(folder: Path) -> None:
    """Removes the files of a folder, that which vouches for them first.

    Raises:
        OSError: one cannot be removed.
    """
    (folder / WHOLE_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _crc32(path: Path) -> int:
    """The checksum of a file, which is read but not mapped: it takes no memory."""
    checksum = 0
    buffer = bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum = isal_zlib.crc32(memoryview(buffer)[:count], checksum)
    return checksum
