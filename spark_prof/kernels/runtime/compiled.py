"""Keeps compiled kernels in the user's cache folder, a file each: cubins, libraries for the CPU.

A file is the SHA-256 of its name and its code, then the code. One that is damaged, or that another
user wrote, counts as missing: machine code is loaded from nowhere else. A cache that cannot be read
or written costs time and nothing else. Beyond a gibibyte the oldest files go.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from spark_prof.files import cache_folder, write_whole

_DIGEST = 32
_MOST_BYTES = 1 << 30  # of all files together


def kept_compiled(key: str) -> bytes | None:
    """The code that was kept under a key, a name of letters and digits; None without one."""
    folder = _folder()
    if folder is None:
        return None
    try:
        with open(folder / key, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            content = file.read()
    except OSError:
        return None
    code = content[_DIGEST:]
    return code if content[:_DIGEST] == _digest(key, code) else None


def keep_compiled(key: str, code: bytes) -> None:
    """Keeps machine code under a key; other processes see the whole file or none."""
    folder = _folder()
    if folder is None:
        return
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(folder / key, _digest(key, code) + code)
        _remove_oldest(folder)


def _remove_oldest(folder: Path) -> None:
    """Removes files from the oldest on until what stays has three quarters of the limit."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # Another process may remove it at the same time.
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    files.append((about.st_mtime_ns, about.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    if total <= _MOST_BYTES:
        return
    for _, size, path in sorted(files):
        if total <= _MOST_BYTES * 3 // 4:
            break
        Path(path).unlink(missing_ok=True)
        total -= size


def _digest(key: str, code: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + code).digest()


def _folder() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "kernels"
