"""Fills the folder of a prepared source through a process of its own, and reads what that wrote."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import spark_prof
from spark_prof.datasets.prepared_process import (
    FAILED_FILE,
    FIRST_LOOK_FILE,
    FIRST_PAGE_FILE,
    OPENING_FILE,
    REFUSED_FILE,
)
from spark_prof.errors import CommandError
from spark_prof.traces.prepared_files import DamagedError, FilesReader, clear, is_whole, read_small
from spark_prof.traces.prepared_folders import WHOLE_FILE, is_locked, lock, own_folder

if TYPE_CHECKING:
    from spark_prof.datasets.prepared_content import Opening, Rest

__all__ = ["begin_in", "failure_in", "first_page_in", "opening_in", "rest_in"]

_ATTEMPTS = 3
_PATIENCE_S = 0.01
_LAST_MOMENTS_S = 0.5
"""What a process may need to end after it has let go of its lock."""

_AT_ONCE = 2
"""Each process takes all cores, and memory for all kernels of its rank."""

_FROM_SOURCE = str(Path(spark_prof.__file__).parents[1])

_processes: list[subprocess.Popen[bytes]] = []
"""Those that were started here, so that each is asked for its exit code."""


def begin_in(folder: Path, source: str, rank: int | None) -> bool:
    """Starts a process that fills the folder, unless it is full or being filled; whether it did.

    Where others that were started here are at work, it waits for its turn.

    Raises:
        OSError: the folder cannot be written, or no process started.
    """
    descriptor = lock(folder)
    if descriptor is None:
        return False
    try:
        if is_whole(folder):
            return False
        clear(folder)
        command = [sys.executable, "-P", "-m", "spark_prof.datasets.prepared_process"]
        command += [source, "-" if rank is None else str(rank), str(folder)]
        _reap(0)
        while len(_processes) >= _AT_ONCE:
            time.sleep(_PATIENCE_S)
            _reap(0)
        _processes.append(
            subprocess.Popen(
                command, pass_fds=(descriptor,), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, env=_environment(),
            )
        )  # fmt: skip
        return True
    finally:
        os.close(descriptor)  # the process holds the lock from here on


def _environment() -> dict[str, str]:
    """That of this process, changed so that the other finds the same spark-prof, and is fast."""
    path = os.pathsep.join(filter(None, [_FROM_SOURCE, os.environ.get("PYTHONPATH")]))
    # With large pages columns of 80 MB are there a tenth sooner; other C libraries ignore it.
    return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} | os.environ | {"PYTHONPATH": path}


def first_page_in(folder: Path) -> tuple[str | None, bool]:
    """What the source says first, as HTML; and whether there may still be something to come.

    Never waits. Of a long recording the first page is at first that of a part of its steps.
    """
    busy = is_locked(folder)  # before looking: who has ended has written everything
    content = read_small(folder / FIRST_PAGE_FILE)
    return None if content is None else content.decode(), busy


def opening_in(
    folder: Path, source: str, rank: int | None, first_look: Callable[[Opening], None]
) -> tuple[bytes, Opening] | None:
    """What the folder begins with, once it is there; None where the folder cannot be filled.

    Args:
        folder: the folder.
        source: what is read.
        rank: the rank, the lowest one if None.
        first_look: is told what a part of the steps says, where that is there before.
    """
    for _ in range(_ATTEMPTS):
        try:
            started = begin_in(folder, source, rank)
            if found := _waited_for(folder, first_look):
                return found
            if is_whole(folder):
                (folder / WHOLE_FILE).unlink()  # it is damaged
            elif started:
                return None
        except (OSError, ValueError):  # no path, or none that a process can be told
            return None
    return None


def _waited_for(
    folder: Path, first_look: Callable[[Opening], None]
) -> tuple[bytes, Opening] | None:
    """The opening that somebody writes or has written; None where nobody will.

    Raises:
        CommandError: the source cannot be shown.
    """
    from spark_prof.datasets.prepared_content import decode_opening

    looked = False
    while True:
        ended = not is_locked(folder)  # before looking: who has ended has written everything
        if (refused := read_small(folder / REFUSED_FILE)) is not None:
            raise CommandError(refused.decode())
        if (content := read_small(folder / OPENING_FILE)) is not None:
            with suppress(DamagedError):
                return content, decode_opening(content)
        if ended:
            return None
        if not looked and (content := read_small(folder / FIRST_LOOK_FILE)) is not None:
            looked = True
            with suppress(DamagedError):
                first_look(decode_opening(content))
        time.sleep(_PATIENCE_S)


def rest_in(folder: Path, source: str, rank: int | None, opening: bytes) -> Rest:
    """The rest of what began like that; where it was lost it is made again.

    Raises:
        CommandError: it cannot be made, or the source is no longer the same.
    """
    from spark_prof.datasets.prepared_content import read_rest

    for place in dict.fromkeys((folder, own_folder() / folder.name)):
        for _ in range(_ATTEMPTS):
            try:
                started = begin_in(place, source, rank)
                while is_locked(place):
                    time.sleep(_PATIENCE_S)
                _reap(_LAST_MOMENTS_S)
                reader = FilesReader(place)
                if reader.small(OPENING_FILE) != opening:
                    raise CommandError(f"{source} has changed; load the page again")
                return read_rest(reader)
            except OSError:
                break
            except DamagedError:
                if started and not is_whole(place):
                    break
                with suppress(OSError):
                    (place / WHOLE_FILE).unlink()
    raise CommandError(f"the kernels of {source} could not be read: {failure_in(place)}")


def _reap(seconds: float) -> None:
    """Asks every process for its exit code, so that of one that ended nothing is left."""
    for process in list(_processes):
        with suppress(subprocess.TimeoutExpired, ValueError):  # another thread may have asked
            process.wait(seconds)
            _processes.remove(process)


def failure_in(folder: Path) -> str:
    """Why the folder was not filled."""
    said = read_small(folder / FAILED_FILE)
    return said.decode() if said else "its process ended early; is there enough memory and disk?"
