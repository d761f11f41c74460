"""Whether somebody still works on a folder of pieces: records into it or makes a bundle of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from spark_prof.errors import CommandError
from spark_prof.traces.claim import is_claimed, locked_folder
from spark_prof.traces.piece_files import json_files
from spark_prof.traces.pieces import RECORDING_FILE, facts_name
from spark_prof.traces.step_counts import pid_namespace

_CLOCK_SECONDS = 3600
"""By how much a process may seem to have started late, because the clock was set."""


def being_recorded(pieces: Path) -> bool:
    """Whether a process of the recording, or the one that started it, is still at work."""
    if is_claimed(pieces.parent):  # by the recorder, whose lock can be seen from a container
        return True
    said = (*pieces.glob("*.progress.json"), pieces / RECORDING_FILE)
    return any(map(is_at_work, said))


@contextmanager
def assembling(pieces: Path) -> Iterator[None]:
    """Keeps a second spark-prof from making the same bundle; a killed one keeps nobody out.

    Raises:
        CommandError: another one is at it.
        OSError: the folder cannot be opened.
    """
    descriptor = locked_folder(pieces)
    if descriptor is None:
        raise CommandError(
            f"another spark-prof is making the bundle {pieces.parent}; wait for it to end"
        )
    try:
        yield
    finally:
        os.close(descriptor)


def is_at_work(path: Path) -> bool:
    """Whether the process that wrote the file is still at work, and no later one of its number."""
    value = next(json_files(path.parent, path.name), {})
    pid = value.get("pid")
    if value.get("finished") or not isinstance(pid, int):
        return False
    facts = value | next(json_files(path.parent, facts_name(path.name.split(".")[0])), {})
    if facts.get("host", socket.gethostname()) != socket.gethostname():
        return False  # the number belongs to another machine or container
    if facts.get("pid_namespace", pid_namespace()) != pid_namespace():
        return False
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False  # killed, and nobody has asked for its exit code
        return float(process.create_time()) <= path.stat().st_mtime + _CLOCK_SECONDS
    except (OSError, ValueError, OverflowError, psutil.Error):
        return False
