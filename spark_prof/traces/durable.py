"""Files that are there whole or not at all, and that outlive a power cut once they are synced.

Writing under a temporary name and renaming is enough against a process that is killed: what it
handed to the kernel stays. A power cut takes what the disk has not been told to keep: `sync_file`
and `sync_folder` tell it. This module runs inside vLLM's workers and needs only the standard
library.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from spark_prof.ending import removed_afterwards


def write_whole(path: Path, write: Callable[[BinaryIO], object], *, durable: bool = False) -> None:
    """Writes a file under its name only when all of it is written.

    Args:
        path: the file; one that is there is replaced.
        write: writes the content.
        durable: return only when the file would outlive a power cut.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    with removed_afterwards(temporary):
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def publish(temporary: Path, path: Path, ending: bytes) -> None:
    """Gives a file that foreign code wrote its name, if it is whole.

    Kineto raises nothing when the disk was full while it wrote.

    Args:
        temporary: the written file, in the same folder; it is gone afterwards.
        path: the file's name.
        ending: the last bytes of a whole file, white space left aside.

    Raises:
        OSError: it was not written to its end, or cannot be renamed.
    """
    try:
        with suppress(FileNotFoundError), open(temporary, "rb") as file:
            file.seek(-min(64, os.fstat(file.fileno()).st_size), os.SEEK_END)
            if not file.read().rstrip().endswith(ending):
                temporary.unlink()
        if not temporary.exists():
            raise OSError(f"{path} was not written to its end; is the disk full?")
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_file(path: Path) -> None:
    """Returns when the file's content would outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Returns when the names in the folder would outlive a power cut."""
    sync_file(path)


def sync_new(folder: Path, process: str, synced: MutableMapping[Path, tuple[int, int]]) -> int:
    """Syncs the files of a process that are new or have changed; for a thread of its own.

    Args:
        folder: the folder of pieces.
        process: the process, such as ``rank0``.
        synced: size and time of change of each file when it was synced; the caller keeps it.

    Returns:
        How many files were synced.

    Raises:
        OSError: the disk could not keep one.
    """
    changed = {}
    for path in folder.glob(f"{process}.*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            mark = (status.st_size, status.st_mtime_ns)
            if synced.get(path) != mark:
                changed[path] = mark
    for path in changed:
        with suppress(FileNotFoundError):
            sync_file(path)
    if changed:
        with suppress(FileNotFoundError):
            sync_folder(folder)
    synced.update(changed)
    return len(changed)
