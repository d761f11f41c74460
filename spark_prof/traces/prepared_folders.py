"""The folders in which prepared recordings are kept, and who may write into which.

They lie in `$XDG_CACHE_HOME/spark-prof/explore-1`, for this user only. A folder's name is that of
its source and of all that decides on its content, so that what is found is what was asked for.
Whoever fills a folder holds its lock; a process that is killed loses it. Only the standard library
is needed here, as this runs before anything else of the explorer.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from spark_prof.ending import remove_at_end

__all__ = ["WHOLE_FILE", "cache_folder", "is_locked", "lock", "make_room", "own_folder"]

WHOLE_FILE = "whole"
"""Is written last: a folder without it is not whole."""

_VERSION = 1
"""Raised when other files are written; it is part of the folder's name."""

_MOST_BYTES = 4 << 30
_MOST_FOLDERS = 200
_GONE = ".gone"


def cache_folder() -> Path:
    """Where prepared sources are kept.

    Raises:
        OSError: nothing can be kept, or others can write there.
        RuntimeError: this user has no home.
    """
    home = os.environ.get("XDG_CACHE_HOME") or ""
    # The specification has relative paths ignored.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    folder = base / "spark-prof" / f"explore-{_VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    others = stat.S_IMODE(status.st_mode) & 0o077
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or others:
        raise PermissionError(f"{folder} is not this user's alone")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder


@functools.cache
def own_folder() -> Path:
    """A folder that is gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="spark-prof-"))
    remove_at_end(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def lock(folder: Path) -> int | None:
    """Takes the lock of a folder, which is made if need be.

    Returns:
        A descriptor: the lock is held until every process that has it has closed it. None where
        somebody else holds the lock.

    Raises:
        OSError: the folder cannot be made or locked.
    """
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(descriptor, folder):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed meanwhile


def is_locked(folder: Path) -> bool:
    """Whether somebody is filling the folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def make_room(
    folder: Path, most_bytes: int = _MOST_BYTES, most_folders: int = _MOST_FOLDERS
) -> None:
    """Removes what is no longer wanted beside a folder: beyond the bounds the oldest goes first.

    Args:
        folder: the one that stays. Those whose names are the same up to the first hyphen are of
            the same source in its past.
        most_bytes: of all folders together.
        most_folders: that there may be.
    """
    past = f"{folder.name.partition('-')[0]}-"
    with suppress(OSError):
        others = [path for path in folder.parent.iterdir() if path != folder and path.is_dir()]
        left = most_bytes - _size(folder)
        kept = 1
        for path in sorted(others, key=_used, reverse=True):
            size = _size(path)
            fits = size <= left and kept < most_folders
            if fits and not path.name.startswith(past) and (path / WHOLE_FILE).exists():
                left, kept = left - size, kept + 1
            else:
                _remove(path)


def _same(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


def _used(folder: Path) -> float:
    """When the folder was last asked for."""
    try:
        return (folder / WHOLE_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        total = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
    return total


def _remove(folder: Path) -> None:
    """Removes a folder that nobody fills; who has its files open keeps them."""
    with suppress(OSError):
        descriptor = lock(folder)
        if descriptor is None:
            return
        try:
            gone = folder.with_name(f".{folder.name}{_GONE}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(descriptor)
