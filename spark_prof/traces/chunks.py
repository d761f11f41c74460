"""The small flushed files that a recorded process writes, before they become a bundle.

They lie in ``BUNDLE/pieces``. A process writes each of them whole (to a temporary name, then
renamed), so that a killed process loses at most the piece in its memory; only the raw CUPTI buffers
and the log grow. This module runs inside vLLM's workers too and therefore needs only the standard
library and NumPy.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from spark_prof.files import sync, write_whole
from spark_prof.redact import redacted_text, redacted_value

_RUN_MARK = b"spark-prof run "
_LONGEST_RUN = 256

RECORDING_FILE = "recording.json"
"""Holds the command and the settings of the recording."""

CLOCK_MARK = "spark_prof clock "
"""What an NVTX mark begins with that names the time, in ns since the epoch."""

REFUSED_FILE = "refused.json"
"""Holds the reason, where a process cannot be recorded."""


def _columns(text: str) -> np.dtype[np.void]:
    """The dtype of rows with columns such as ``step:i4``."""
    return np.dtype([(name, kind) for name, _, kind in (c.partition(":") for c in text.split())])


STEP_DTYPE = _columns(
    "step:i4 key:i8 phase:i1 start_ns:i8 end_ns:i8 prefill_requests:i4 prefill_tokens:i4 "
    "decode_requests:i4 decode_tokens:i4 context_tokens:i8 thread:i8 watched:?"
)
"""One recorded step; `phase` counts through vocabulary.PHASES."""

EVENT_DTYPE = _columns("time_ns:i8 code:i8")
"""Entering module m is code m + 1, leaving it -(m + 1), leaving everything 0."""

NODE_DTYPE = _columns("created_ns:i8 node:i8 original:i8 graph:i4 thread:i4")
"""A created or cloned node of a CUDA graph; `original` is 0 for one that is no clone."""

ARGUMENT_DTYPE = _columns("node:i8 correlation:i8 address:i8 argument:i4 offset:i4 size:i4")
"""A word among a kernel's arguments that may be an address; columns of the `arguments` table."""

CAPTURE_DTYPE = _columns("start_ns:i8 end_ns:i8 tokens:i4 mode:i4")
"""One capture of a CUDA graph; `mode` is vLLM's CUDAGraphMode: 1 PIECEWISE, 2 FULL, 0 unknown."""

COUNTER_DTYPE = _columns(
    "start_ns:i8 end_ns:i8 dram_read_bytes:f8 dram_write_bytes:f8 tensor_active:f8 sm_active:f8 "
    "warps_active:f8"
)
"""One sampled interval; the columns of the `counters` table."""

ENGINE_DTYPE = _columns(
    "key:i8 schedule_ns:i8 update_ns:i8 scheduled_tokens:i4 output_tokens:i4 output_requests:i4 "
    "unfinished:i4"
)
"""One iteration as the scheduler saw it; the columns of the `engine` table."""


def pieces_folder(bundle: Path) -> Path:
    """Where the pieces of that bundle lie while it is recorded."""
    return bundle / "pieces"


def facts_name(process: str) -> str:
    """The JSON file in which a process, such as ``rank0`` or ``engine0``, says what it is."""
    return f"{process}.facts.json"


def progress_name(process: str) -> str:
    """The JSON file in which a process says how far it is."""
    return f"{process}.progress.json"


def tensors_name(process: str) -> str:
    """The JSON file with where the tensors of that process lie."""
    return f"{process}.tensors.json"


def array_name(process: str, kind: str, piece: int) -> str:
    """The NumPy file of one piece; `kind` is steps, events, arguments or engine."""
    return f"{process}.{piece:05d}.{kind}.npy"


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


def write_array(folder: Path, name: str, rows: np.ndarray[Any, Any], run: str = "") -> None:
    """Writes one array so that it is there whole or not at all.

    Args:
        run: the recording; it follows the array, where `np.load` does not look.
    """
    buffer = io.BytesIO()  # np.save says nothing when a file on a full disk is cut off
    np.save(buffer, rows, allow_pickle=False)
    if run:
        buffer.write(_RUN_MARK + run.encode())
    write_whole(folder / name, buffer.getvalue())


def array_run(path: Path) -> str:
    """The recording that wrote an array; empty where it does not say so."""
    try:
        with open(path, "rb") as file:
            file.seek(-min(_LONGEST_RUN, os.fstat(file.fileno()).st_size), os.SEEK_END)
            _, mark, run = file.read().rpartition(_RUN_MARK)
    except OSError:
        return ""
    return run.decode(errors="replace") if mark else ""


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
    shown = redacted_text(message)
    line = json.dumps({"time_ns": time_ns, "process": process, "message": shown})
    with open(folder / f"{process}.log.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")


def sync_new(folder: Path, process: str, synced: MutableMapping[Path, tuple[int, int]]) -> int:
    """Syncs the files of a process that are new or have changed; for a thread of its own.

    Args:
        synced: size and time of change of each file when it was synced; the caller keeps it.

    Returns:
        How many files were synced.

    Raises:
        OSError: the disk could not keep one.
    """
    changed = {}
    for path in folder.glob(f"{process}.*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            mark = (status.st_size, status.st_mtime_ns)
            if synced.get(path) != mark:
                changed[path] = mark
    for path in changed:
        with suppress(FileNotFoundError):
            sync(path)
    if changed:
        with suppress(FileNotFoundError):
            sync(folder)
    synced.update(changed)
    return len(changed)
