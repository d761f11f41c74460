"""Finds and reads the file of a result, alone or in the folder of its run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from spark_prof.ab.result import KIND, Result, from_json
from spark_prof.errors import CommandError

RESULT_FILE = "result.json"
"""Its name in the folder of a run."""

_MARK = f'"kind": "{KIND}"'.encode()
_HEAD = 256
_LARGEST_FILE = 64 << 20


def find_result(source: str | Path) -> Path | None:
    """The file of a result that a path names, or whose folder it names; None where it is neither.

    Only the first bytes are looked at: the file may be damaged further on.
    """
    path = Path(source)
    with suppress(OSError, ValueError):
        if path.is_dir():
            path /= RESULT_FILE
        if path.is_file():
            with open(path, "rb") as file:
                if _MARK in file.read(_HEAD):
                    return path
    return None


def read_result(path: Path) -> Result:
    """Reads a result.

    Raises:
        CommandError: it cannot be read, or is none.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > _LARGEST_FILE:
        raise CommandError(f"{path} is too long for a result of spark-prof ab; run it again")
    return from_json(text, str(path))
