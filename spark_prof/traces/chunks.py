"""The small flushed files that a recorded process writes, before they become a bundle.

They lie in ``BUNDLE/pieces``. A process writes each of them whole (to a temporary name, then
renamed), so that a killed process loses at most the piece in its memory; only the raw CUPTI buffers
and the log grow. How many steps it has recorded stands in a file that outlives it: the process maps
the file into its memory and stores numbers there, with no system call in a step, and the kernel
keeps what was stored, however the process ends. Whoever makes the bundle compares the numbers with
the steps in the files.

This module runs inside vLLM's workers too and therefore needs only the standard library and NumPy.
"""

from __future__ import annotations

import fcntl
import io
import json
import mmap
import os
import struct
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from spark_prof.files import sync, write_whole
from spark_prof.redact import redacted_text, redacted_value

META_FILE = "meta.json"  # of a bundle, written last

RECORDING_FILE = "recording.json"  # holds the command and the settings of the recording

CLOCK_MARK = "spark_prof clock "
"""What an NVTX mark begins with that names the time, in ns since the epoch."""

REFUSED_FILE = "refused.json"  # holds the reason, where a process cannot be recorded

LATER_ENGINE_FILE = "later.json"  # of the process of an engine that came after the recorded one

LATER_ENGINE = (
    "its command started more than one vLLM engine, and only the first is recorded; "
    "give each engine a command of its own"
)


def _columns(text: str) -> np.dtype[np.void]:
    """The dtype of rows with columns such as ``step:i4``."""
    return np.dtype([(name, kind) for name, _, kind in (c.partition(":") for c in text.split())])


STEP_DTYPE = _columns(
    "step:i4 key:i8 phase:i1 start_ns:i8 end_ns:i8 prefill_requests:i4 prefill_tokens:i4 "
    "decode_requests:i4 decode_tokens:i4 context_tokens:i8 thread:i8 watched:? "
    "recomputed_tokens:i4 preempted:i4 paused_ns:i8"
)
"""One recorded step; `phase` counts through vocabulary.PHASES."""

LATER_COLUMNS = frozenset(
    {"paused_ns", "kind", "group", "iteration", "running", "waiting", "free_blocks", "limit"}
)
"""Columns that an earlier spark-prof did not write: they are 0 in its pieces."""

EVENT_DTYPE = _columns("time_ns:i8 code:i8")
"""Entering module m is code m + 1, leaving it -(m + 1), leaving everything 0."""

NODE_DTYPE = _columns("created_ns:i8 node:i8 original:i8 graph:i4 thread:i4")
"""A created or cloned node of a CUDA graph; `original` is 0 for one that is no clone."""

ARGUMENT_DTYPE = _columns("node:i8 correlation:i8 address:i8 argument:i4 offset:i4 size:i4")
"""A word among a kernel's arguments that may be an address; columns of the `arguments` table."""

CAPTURE_DTYPE = _columns("start_ns:i8 end_ns:i8 tokens:i4 mode:i4 kind:i4 group:i4")
"""One capture of a CUDA graph; `mode` is vLLM's CUDAGraphMode: 1 PIECEWISE, 2 FULL, 0 unknown, or
3 BREAKABLE; `kind` counts through vocabulary.GRAPH_KINDS; pieces of one call have one `group`."""

COUNTER_DTYPE = _columns(
    "start_ns:i8 end_ns:i8 dram_read_bytes:f8 dram_write_bytes:f8 tensor_active:f8 sm_active:f8 "
    "warps_active:f8"
)
"""One sampled interval; the columns of the `counters` table."""

ENGINE_DTYPE = _columns(
    "key:i8 schedule_ns:i8 update_ns:i8 scheduled_tokens:i4 output_tokens:i4 output_requests:i4 "
    "unfinished:i4 iteration:i8 running:i4 waiting:i4 free_blocks:i8 limit:i1"
)
"""One iteration as the scheduler saw it; `limit` counts through vocabulary.LIMITS."""

REQUEST_DTYPE = _columns(
    "request:i4 arrival_ns:i8 queued_ns:i8 scheduled_ns:i8 first_token_ns:i8 last_token_ns:i8 "
    "end_ns:i8 prompt_tokens:i4 cached_tokens:i4 output_tokens:i4 preemptions:i4 preempted_ns:i8 "
    "first_preempted_ns:i8 finish:i1"
)
"""One request of the scheduler; `finish` counts through vocabulary.FINISHES."""

REQUEST_STEP_DTYPE = _columns("request:i4 first:i8 last:i8 read_tokens:i4 output_tokens:i8")
"""An unbroken run of iterations that a request took part in; the `request_steps` table."""

DRAFT_DTYPE = _columns("key:i8 request:i4 context:i4 proposed:i4 accepted:i4")
"""What was drafted for one request of an iteration; the columns of the `drafts` table."""

STACK_DTYPE = _columns("time_ns:i8 pid:i8 thread:i8 stack:i8")
"""What a thread did when it was looked at; `stack` is a row of the texts beside it."""

HOST = "host"
"""Begins the names of what the recorder itself saw of the recorded processes, from outside."""

ACCOUNT_FILE = f"{HOST}.account.json"
"""What their threads used, and what the host let them have; with process ids."""


def pieces_folder(bundle: Path) -> Path:
    """Where the pieces of that bundle lie while it is recorded."""
    return bundle / "pieces"


def facts_name(process: str) -> str:
    """The JSON file in which a process, such as ``rank0`` or ``engine0``, says what it is."""
    return f"{process}.facts.json"


def progress_name(process: str) -> str:
    """The JSON file in which a process says how far it is."""
    return f"{process}.progress.json"


STARTS = "starts"
"""Among the facts of a bundle's first rank: how each process of the engine started."""


def start_name(token: str) -> str:
    """When one process did what while its engine started (`profiler.start_marks`)."""
    return f"start-{token}.json"


def tensors_name(process: str) -> str:
    """The JSON file with where the tensors of that process lie."""
    return f"{process}.tensors.json"


def array_name(process: str, kind: str, piece: int) -> str:
    """The NumPy file of one piece; `kind` is steps, events, arguments, engine, drafts...."""
    return f"{process}.{piece:05d}.{kind}.npy"


def stacks_name(piece: int) -> str:
    """The JSON file with the stacks that rows of STACK_DTYPE in that piece point to."""
    return f"{HOST}.{piece:05d}.stacks.json"


def activity_name(process: str, piece: int) -> str:
    """The raw CUPTI buffers of one piece."""
    return f"{process}.{piece:05d}.activity.bin"


def names_name(process: str, piece: int) -> str:
    """The JSON file with what the records of that piece only point to."""
    return f"{process}.{piece:05d}.names.json"


def capture_name(process: str, kind: str) -> str:
    """What was seen of the captures; `kind` is capture-events, captures, nodes or arguments."""
    return f"{process}.{kind}.npy"


def cubins_folder(pieces: Path) -> Path:
    """Where the recorded processes keep the machine code that they load."""
    return pieces / "cubins"


def cached_cubin_name(source: str, number: int) -> str:
    """A cubin from that cache; those of the driver begin with a process number."""
    return f"{source}-{number}.cubin"


def kineto_name(process: str, piece: int) -> str:
    """The Kineto trace of one piece."""
    return f"{process}.{piece:05d}.kineto.json"


def write_array(folder: Path, name: str, rows: np.ndarray[Any, Any]) -> None:
    """Writes one array, whole or not at all."""
    buffer = io.BytesIO()  # np.save says nothing when a file on a full disk is cut off
    np.save(buffer, rows, allow_pickle=False)
    write_whole(folder / name, buffer.getvalue())


def write_json(folder: Path, name: str, value: object, *, symbols: bool = False) -> None:
    """Writes one JSON file so that it is there whole or not at all; secrets in it are hidden.

    Where its keys are symbols of code, they say nothing about their values.
    """
    text = json.dumps(value if symbols else redacted_value(value))
    write_whole(folder / name, text)


def write_refusal(folder: Path, reason: str) -> None:
    """Tells whoever waits for a recording why nothing will come."""
    write_json(folder, REFUSED_FILE, {"reason": reason})


def append_log(folder: Path, process: str, time_ns: int, message: str) -> None:
    """Appends one line to the process's log; secrets in it are hidden."""
    redacted = redacted_text(message)
    line = json.dumps({"time_ns": time_ns, "process": process, "message": redacted})
    with open(folder / f"{process}.log.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")


_WRITTEN_ONCE = (".npy", ".kineto.json")


def sync_new(folder: Path, process: str, synced: MutableMapping[str, tuple[int, int]]) -> int:
    """Syncs the files of a process that are new or have changed, and returns how many.

    For a thread of its own; `synced` has the size and time of change of each when it was synced.
    Of thousands of pieces only the new ones are looked at, as the engine waits meanwhile.
    """
    changed = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(f"{process}."):
                continue
            if entry.path in synced and entry.name.endswith(_WRITTEN_ONCE):
                continue
            with suppress(FileNotFoundError):
                status = entry.stat()
                mark = (status.st_size, status.st_mtime_ns)
                if synced.get(entry.path) != mark:
                    changed[entry.path] = mark
    for path in changed:
        with suppress(FileNotFoundError):
            sync(Path(path))
    if changed:
        with suppress(FileNotFoundError):
            sync(folder)
    synced.update(changed)
    return len(changed)


_FILE = _columns("magic:S8 run:S32 boot:S40 pid:<i8 begun:<i8 recorded:<i8 flags:<i8 unlogged:<i8")
_MAGIC = b"SPCOUNT1"
_FIRST = int(_FILE.fields["begun"][1]) if _FILE.fields else 0
_BEGUN, _RECORDED, _FLAGS, _UNLOGGED = range(4)
_FAILED, _ENDED = 1, 2

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
    ended: bool  # whether the process has nothing more to add
    unlogged: int  # lines that could not be written into the log
    exact: bool  # whether nothing can be newer: it was written under the kernel that runs now


class StepCounter:
    """The numbers of this process. Before `open`, and where it fails, they are kept in memory."""

    def __init__(self) -> None:
        self._numbers = memoryview(bytearray(8 * 4)).cast("q")

    def open(self, folder: Path, process: str, run: str) -> None:
        """Maps the file, with nothing counted yet; no other process may while this one counts.

        Raises:
            FileExistsError: another process counts there, or did in an earlier recording.
            OSError: the file cannot be written, or the file system cannot map it.
        """
        path = folder / counts_name(process)
        texts = (_MAGIC, run.encode(), boot_id().encode())
        rows = np.array([(*texts, os.getpid(), 0, 0, 0, 0)], dtype=_FILE)
        with _own_file(path) as file:  # the map holds the file's lock
            try:
                _keep_in_place(file)
                file.write(rows.tobytes())
                file.flush()
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
        self._numbers[_FLAGS] |= _FAILED

    def finish(self) -> None:
        """Says that nothing more will come, also where the disk is full, and lets the file go."""
        self._numbers[_FLAGS] |= _ENDED
        # A map that is left keeps its file system busy.
        self._numbers = memoryview(bytearray(self._numbers)).cast("q")

    def miss_line(self) -> None:
        """Says that a line could not be logged."""
        self._numbers[_UNLOGGED] += 1


def _own_file(path: Path) -> BinaryIO:
    """Opens and locks a file that is new, or that a process left which had counted nothing.

    Raises:
        FileExistsError: another process has it.
    """
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        file = os.fdopen(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), "r+b")
        new = True
    except FileExistsError:
        file = os.fdopen(os.open(path, flags), "r+b")
        new = False
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = None if new else _read(path)
        occupied = before is not None and before.recorded > 0
    except BlockingIOError:
        occupied = True
    except OSError:  # a file system without locks: only who makes the file has it
        occupied = not new
    if occupied:
        file.close()
        raise FileExistsError(f"another process counts in {path.name}")
    return file


def counts_name(process: str) -> str:
    """The file's name. It is none of the process's pieces: while one is synced, a store waits."""
    return f"counts.{process}.bin"


def read_counts(pieces: Path) -> dict[str, StepCounts]:
    """What every process that counted says, by its name; damaged files are left out."""
    all_counts = (_read(path) for path in sorted(pieces.glob(counts_name("*"))))
    return {counts.process: counts for counts in all_counts if counts is not None}


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
    numbers = ("pid", "begun", "recorded", "flags", "unlogged")
    pid, begun, recorded, flags, unlogged = (int(row[name]) for name in numbers)
    if not 0 <= recorded <= 1 << 40 or not 0 <= begun <= 1 << 40:
        return None
    boot = row["boot"].decode(errors="replace")
    process = path.name.removeprefix("counts.").removesuffix(".bin")
    run = row["run"].decode(errors="replace")
    same = bool(boot) and boot == boot_id()
    failed, ended = bool(flags & _FAILED), bool(flags & _ENDED)
    return StepCounts(process, run, pid, begun, recorded, failed, ended, unlogged, same)


def _keep_in_place(file: BinaryIO) -> None:
    """Lets btrfs write a store over what was there: on a full disk a copy would raise SIGBUS."""
    with suppress(OSError):
        flags = bytearray(8)
        fcntl.ioctl(file.fileno(), _GET_FLAGS, flags)
        value = struct.unpack("l", flags)[0] | _NO_COPY_ON_WRITE
        fcntl.ioctl(file.fileno(), _SET_FLAGS, struct.pack("l", value))
