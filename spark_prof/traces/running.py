"""Whether somebody still works on a folder of pieces: records into it or makes a bundle of it."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from spark_prof.errors import CommandError
from spark_prof.traces.piece_files import json_files
from spark_prof.traces.pieces import RECORDING_FILE, facts_name

__all__ = ["assembling", "being_recorded"]

_CLOCK_SECONDS = 3600
"""By how much a process may seem to have started late, because the clock was set."""


def being_recorded(pieces: Path) -> bool:
    """Whether a process of the recording, or the one that started it, is still at work."""
    # The recorder says so as well: a container's process numbers mean nothing out here.
    return any(_runs(path) for path in (*pieces.glob("*.progress.json"), pieces / RECORDING_FILE))


@contextmanager
def assembling(pieces: Path) -> Iterator[None]:
    """Keeps a second spark-prof from making the same bundle; a killed one keeps nobody out.

    Raises:
        CommandError: another one is at it.
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(pieces, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(
                f"another spark-prof is making the bundle {pieces.parent}; wait for it to end"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def _runs(path: Path) -> bool:
    """Whether the process that wrote the file is still at work, and no later one of its number."""
    value = next(json_files(path.parent, path.name), {})
    pid = value.get("pid")
    if value.get("finished") or not isinstance(pid, int):
        return False
    facts = next(json_files(path.parent, facts_name(path.name.split(".")[0])), {})
    if facts.get("host", socket.gethostname()) != socket.gethostname():
        return False  # the number belongs to another machine or container
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False  # killed, and nobody has asked for its exit code
        return float(process.create_time()) <= path.stat().st_mtime + _CLOCK_SECONDS
    except (OSError, ValueError, OverflowError, psutil.Error):
        return False
