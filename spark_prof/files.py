"""Files that are there whole or not at all, and the user's cache folder.

Writing under a temporary name and renaming is enough against a process that is killed: what it
handed to the kernel stays. A power cut takes what the disk has not been told to keep: `sync` tells
it. This module runs inside vLLM's workers and needs only the standard library.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from spark_prof.ending import removed_afterwards


def write_whole(
    path: Path,
    content: bytes | str | Callable[[BinaryIO], object],
    *,
    durable: bool = False,
) -> None:
    """Writes a file under its name only when all of it is written, over one that is there.

    What is durable would outlive a power cut. Where it cannot be written, nothing is left of it.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        sync(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside the path to write a file under; it takes the path's place when all went well.

    After any error nothing of it is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    with removed_afterwards(temporary):
        yield temporary
        os.replace(temporary, path)


def cache_folder() -> Path | None:
    """The user's folder for what can be made again, by the XDG base directory specification.

    None where neither XDG_CACHE_HOME nor a home folder is known, as in some containers.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache_home):
        return Path(cache_home) / "spark-prof"
    try:
        return Path.home() / ".cache" / "spark-prof"
    except RuntimeError:
        return None


def publish(temporary: Path, path: Path, ending: bytes) -> None:
    """Gives a file that foreign code wrote beside it its name, if it has its last bytes.

    Kineto raises nothing when the disk was full while it wrote. White space behind the ending is
    left aside, and the temporary file is gone in any case.
    """
    with removed_afterwards(temporary):
        last = b""
        with suppress(FileNotFoundError), open(temporary, "rb") as file:
            file.seek(-min(64, os.fstat(file.fileno()).st_size), os.SEEK_END)
            last = file.read()
        if not last.rstrip().endswith(ending):
            raise OSError(f"{path} was not written to its end; is the disk full?")
        os.replace(temporary, path)


def sync(path: Path) -> None:
    """Returns when a file's content, or the names in a folder, would outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
