"""Tells cheaply whether what lies at a path is still what it was, without reading it.

Of files only names, sizes and times are looked at, and of a bundle also its meta.json. Of a folder
that is being recorded only whole pieces count: what a process writes all the time changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.running import being_recorded

_PIECES = "pieces"
_WHOLE = ".steps.npy"
"""Written last of all files of a piece."""

_MOST_FILES = 10_000
_MOST_META = 64 << 20


def source_state(source: str) -> str | None:
    """A text that changes when the source does; None where it is no local file or folder.

    Args:
        source: a bundle, the folder of its pieces, a trace, or a folder of traces.
    """
    digest = hashlib.sha256()
    try:
        for fact in _facts(Path(source)):
            digest.update(repr(fact).encode("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return None
    return digest.hexdigest()[:32]


def _facts(path: Path) -> Iterator[object]:
    if not path.is_dir():
        yield _state(path.stat())
        return
    meta, pieces = path / META_FILE, path / _PIECES
    if meta.exists():
        with meta.open("rb") as file:
            yield hashlib.sha256(file.read(_MOST_META)).digest()
    elif pieces.is_dir():
        yield being_recorded(pieces)
        yield sorted(entry.name for entry in os.scandir(pieces) if entry.name.endswith(_WHOLE))
        return
    yield from _files(path)


def _files(folder: Path) -> Iterator[object]:
    """Every file below a folder; links to folders and what is hidden are left out."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            seen += 1
            if seen > _MOST_FILES:
                return
            path = os.path.join(place, name)
            yield os.path.relpath(path, folder), _state(os.stat(path))


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
