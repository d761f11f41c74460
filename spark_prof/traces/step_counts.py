"""How many steps a process has recorded, in a file that outlives the process.

The process maps the file into its memory and stores numbers there: no system call in a step, and
the kernel keeps what was stored, however the process ends. Whoever makes the bundle compares the
numbers with the steps in the files. This module runs inside vLLM's workers and needs only the
standard library and NumPy.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from spark_prof.files import write_whole

_FILE = np.dtype(
    [
        ("magic", "S8"),
        ("run", "S32"),
        ("boot", "S40"),
        ("pid", "<i8"),
        ("begun", "<i8"),
        ("recorded", "<i8"),
        ("failed", "<i8"),
        ("unlogged", "<i8"),
    ]
)
_MAGIC = b"SPCOUNT1"
_FIRST = int(_FILE.fields["begun"][1]) if _FILE.fields else 0
_BEGUN, _RECORDED, _FAILED, _UNLOGGED = range(4)

_GET_FLAGS, _SET_FLAGS, _NO_COPY_ON_WRITE = 0x80086601, 0x40086602, 0x00800000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_NOCOW_FL of linux/fs.h."""


@dataclass(frozen=True)
class StepCounts:
    """What the file of one process says."""

    process: str
    run: str
    pid: int  # its number, in its own namespace
    begun: int  # steps of the recording that began; one more than `recorded` while a step runs
    recorded: int  # steps (of a scheduler: iterations) that were recorded
    failed: bool  # whether the recording ended itself because one of its hooks failed
    unlogged: int  # lines that could not be written into the log
    exact: bool  # whether nothing can be newer: it was written under the kernel that runs now


class StepCounter:
    """The numbers of this process. Before `open`, and where it fails, they are kept in memory."""

    def __init__(self) -> None:
        self._numbers = memoryview(bytearray(8 * 4)).cast("q")

    def open(self, folder: Path, process: str, run: str) -> None:
        """Maps the file, with nothing counted yet.

        Raises:
            FileExistsError: another process, or an earlier recording, counted there.
            OSError: the file cannot be written, or the file system cannot map it.
        """
        path = folder / counts_name(process)
        before = _read(path)
        if before is not None and before.recorded:
            raise FileExistsError(f"process {before.pid} was recorded as {process} before")
        texts = (_MAGIC, run.encode(), boot_id().encode())
        rows = np.array([(*texts, os.getpid(), 0, 0, 0, 0)], dtype=_FILE)

        def write(file: BinaryIO) -> None:
            _keep_in_place(file)
            file.write(rows.tobytes())

        write_whole(path, write)
        try:
            with open(path, "r+b") as file:
                mapped = mmap.mmap(file.fileno(), _FILE.itemsize)
        except (OSError, ValueError):
            with suppress(OSError):
                path.unlink()
            raise
        self._numbers = memoryview(mapped)[_FIRST:].cast("q")

    def begin(self, step: int) -> None:
        """Says that the step of that number runs."""
        self._numbers[_BEGUN] = step + 1

    def end(self, recorded: int) -> None:
        """Says how many steps are recorded."""
        self._numbers[_RECORDED] = recorded

    def fail(self) -> None:
        """Says that the recording ended itself."""
        self._numbers[_FAILED] = 1

    def miss_line(self) -> None:
        """Says that a line could not be logged."""
        self._numbers[_UNLOGGED] += 1


def counts_name(process: str) -> str:
    """The file's name. It is none of the process's pieces: while one is synced, a store waits."""
    return f"counts.{process}.bin"


def read_counts(pieces: Path) -> dict[str, StepCounts]:
    """What every process that counted says, by its name; damaged files are left out."""
    found = (_read(path) for path in sorted(pieces.glob(counts_name("*"))))
    return {counts.process: counts for counts in found if counts is not None}


def boot_id() -> str:
    """The current boot of this machine, the same in all its containers; empty where unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def pid_namespace() -> str:
    """In what the numbers of processes mean the same; empty where unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read(path: Path) -> StepCounts | None:
    try:
        with open(path, "rb") as file:
            content = file.read(_FILE.itemsize + 1)
    except OSError:
        return None
    if len(content) != _FILE.itemsize or not content.startswith(_MAGIC):
        return None
    row = np.frombuffer(content, _FILE)[0]
    numbers = ("pid", "begun", "recorded", "failed", "unlogged")
    pid, begun, recorded, failed, unlogged = (int(row[name]) for name in numbers)
    if not 0 <= recorded <= 1 << 40 or not 0 <= begun <= 1 << 40:
        return None
    boot = row["boot"].decode(errors="replace")
    process = path.name.removeprefix("counts.").removesuffix(".bin")
    run = row["run"].decode(errors="replace")
    same = bool(boot) and boot == boot_id()
    return StepCounts(process, run, pid, begun, recorded, bool(failed), unlogged, same)


def _keep_in_place(file: BinaryIO) -> None:
    """Lets btrfs write a store over what was there: on a full disk a copy would raise SIGBUS."""
    with suppress(OSError):
        flags = bytearray(8)
        fcntl.ioctl(file.fileno(), _GET_FLAGS, flags)
        value = struct.unpack("l", flags)[0] | _NO_COPY_ON_WRITE
        fcntl.ioctl(file.fileno(), _SET_FLAGS, struct.pack("l", value))
