"""Keeps compiled kernels in the user's cache folder, a file each.

A file is the SHA-256 of its name and its cubin, then the cubin. One that is damaged, or that
another user wrote, counts as missing: machine code is loaded from nowhere else. A cache that
cannot be read or written costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["keep_cubin", "kept_cubin"]

_DIGEST = 32
_LARGEST = 64 << 20
"""Bytes; a kernel has some hundred thousand."""


def kept_cubin(key: str) -> bytes | None:
    """The cubin that was kept under a key, a name of letters and digits; None without one."""
    try:
        # Where the name is a pipe, opening it must not wait for a writer.
        with open(os.open(_folder() / key, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                return None
            content = file.read(_LARGEST)
    except OSError:
        return None
    cubin = content[_DIGEST:]
    return cubin if content[:_DIGEST] == _digest(key, cubin) else None


def keep_cubin(key: str, cubin: bytes) -> None:
    """Keeps a cubin under a key; other processes see the whole file or none."""
    folder = _folder()
    temporary = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        with open(handle, "wb") as file:
            file.write(_digest(key, cubin) + cubin)
        os.replace(temporary, folder / key)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _digest(key: str, cubin: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + cubin).digest()


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or ""
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return folder / "spark-prof" / "kernels"
