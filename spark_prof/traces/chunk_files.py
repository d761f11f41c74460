"""Finds and reads the flushed files of a recording, whole or damaged."""

from __future__ import annotations

import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgspec
import numpy as np
import psutil
import pyarrow as pa

from spark_prof.errors import CommandError
from spark_prof.traces.chunks import (
    LATER_COLUMNS,
    RECORDING_FILE,
    counts_name,
    facts_name,
    pid_namespace,
    progress_name,
    read_counts,
    start_name,
)
from spark_prof.traces.claim import is_claimed, locked_folder
from spark_prof.traces.tables import TABLES

_PIECE = re.compile(
    r"(?P<process>rank[0-9]{1,9})\.(?P<piece>[0-9]{5,9})\."
    r"(?:steps\.npy|events\.npy|counters\.npy|kineto\.json|activity\.bin)"
)
"""Any of these is evidence of a piece: its process may have been killed before the others."""

_MODULE = ("path", "type", "layer", "component")
"""What a process says of a module; its number is its place in the list."""

_PROCESS = re.compile(r"(?P<name>(?:rank|engine)(?P<rank>[0-9]{1,9}))\..*(?:facts\.json|npy|bin)")


def processes(pieces: Path) -> dict[str, dict[str, Any]]:
    """What every process that left a file said about itself, by its name.

    One whose facts are damaged or missing has no more than `process` and `rank`.
    """
    facts: dict[str, dict[str, Any]] = {}
    for match in filter(None, (_PROCESS.fullmatch(path.name) for path in pieces.iterdir())):
        name = match["name"]
        fact = json_object(pieces / facts_name(name))
        modules = _rows(fact.get("modules"), "modules", _MODULE)
        layers = _rows(fact.get("layers"), "layers")
        fact |= {"modules": modules, "layers": layers}
        intact = {} if modules is None or layers is None else fact
        facts[name] = intact | {"process": name, "rank": int(match["rank"])}
    return dict(sorted(facts.items()))


class RecordingNote(msgspec.Struct):
    """What the recorder said when it began."""

    command: tuple[str, ...] = ()
    settings: dict[str, Any] = {}


def recording_of(pieces: Path) -> RecordingNote:
    """What the recorder said; nothing where it ran on another host, or its file is damaged."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(json_object(pieces / RECORDING_FILE), RecordingNote)
    return RecordingNote()


def piece_numbers(pieces: Path, process: str) -> list[int]:
    """The pieces of a rank of which anything was flushed."""
    matches = (_PIECE.fullmatch(path.name) for path in pieces.glob(f"{process}.*"))
    return sorted({int(match["piece"]) for match in matches if match})


def other_recordings(pieces: Path) -> list[Path]:
    """The files in the folder of processes that another recording ran.

    On a host without the recorder an earlier run may have left ranks that this one has not; two
    runs never write under one name (`StepCounter.open`).
    """
    runs = {name: counts.run for name, counts in read_counts(pieces).items()}
    for fact in json_files(pieces, "*.facts.json"):
        runs[str(fact.get("process"))] = str(fact.get("run") or "")
    run = str(recording_of(pieces).settings.get("run") or "")
    if not run:  # of another host than the recorder's
        usual = Counter(filter(None, runs.values())).most_common(1)
        run = usual[0][0] if usual else ""
    other_processes = (
        {name for name, run_of_process in runs.items() if run_of_process not in ("", run)}
        if run
        else set()
    )
    return sorted(
        path for path in pieces.iterdir() if other_processes & set(path.name.split(".")[:2])
    )


def starts_of(pieces: Path, run: str) -> list[dict[str, Any]]:
    """How each process of this recording's engine started, in the order of their starts."""
    rows = json_files(pieces, start_name("*"))
    whole = [row for row in rows if isinstance(row.get("started_ns"), int)]
    return sorted(
        (row for row in whole if row.get("run") in (run, "") or not run),
        key=lambda row: int(row["started_ns"]),
    )


def load_array(path: Path, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Reads one array of a piece."""
    try:
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, TokenError) as error:
        raise CommandError(f"{path.name} is missing or damaged") from error
    if not isinstance(array, np.ndarray) or array.ndim != 1 or not _fits(array.dtype, kind):
        raise CommandError(f"{path.name} was written by another spark-prof")
    if array.dtype == kind:
        return array
    filled = np.zeros(len(array), kind)
    for name in array.dtype.names or ():
        filled[name] = array[name]
    return filled


def _fits(dtype: np.dtype[Any], kind: np.dtype[Any]) -> bool:
    """Whether rows are of that kind, but perhaps without the columns that came later."""
    names = [name for name in kind.names or () if name not in LATER_COLUMNS]
    return dtype == kind or dtype == np.dtype([(name, kind[name]) for name in names])


def load_tensors(path: Path) -> list[dict[str, Any]]:
    """The rows of the `tensors` table that a process wrote."""
    rows = _rows(json_object(path).get("tensors"), "tensors")
    if rows is None:
        raise CommandError(f"{path.name} is damaged or was written by another spark-prof")
    return rows


def json_object(path: Path) -> dict[str, Any]:
    """The object in a file; empty where a killed process left no whole one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def json_files(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """The objects in these files, as far as they are whole."""
    return [value for path in sorted(folder.glob(pattern)) if (value := json_object(path))]


def log_lines(pieces: Path) -> list[dict[str, Any]]:
    """The rows of the `log` table."""
    lines = []
    for path in sorted(pieces.glob("*.log.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):  # the line that a killed process was writing
                continue
            lines += _rows([value], "log") or []
    return lines


def _rows(
    table_rows: object, table: str, columns: Sequence[str] = ()
) -> list[dict[str, Any]] | None:
    """The rows of a table, or these columns of them; None where `table_rows` is no list of such."""
    if not isinstance(table_rows, list) or not all(isinstance(row, dict) for row in table_rows):
        return None
    schema = TABLES[table].schema
    try:
        chosen = pa.schema([schema.field(name) for name in columns or schema.names])
        rows = pa.Table.from_pylist(table_rows, chosen)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    whole: list[dict[str, Any]] = rows.to_pylist()
    return None if any(column.null_count for column in rows.columns) else whole


_CLOCK_SECONDS = 3600
"""By how much a process may seem to have started late, because the clock was set."""


def being_recorded(pieces: Path) -> bool:
    """Whether a process of the recording, or the one that started it, is still at work."""
    if is_claimed(pieces.parent):  # by the recorder, whose lock can be seen from a container
        return True
    notes = (*pieces.glob("*.progress.json"), pieces / RECORDING_FILE)
    if any(map(is_at_work, notes)):
        return True
    return any(  # a process counts from its first step on, and says later how far it is
        _runs(counts.pid, pieces / counts_name(name), json_object(pieces / facts_name(name)))
        for name, counts in read_counts(pieces).items()
        if counts.exact and not counts.ended
        if not (pieces / progress_name(name)).exists()
    )


@contextmanager
def assembling(pieces: Path) -> Iterator[None]:
    """Keeps a second spark-prof from making the same bundle; a killed one keeps nobody out."""
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
    value = json_object(path)
    pid = value.get("pid")
    counts = read_counts(path.parent).get(path.name.split(".")[0])
    ended = counts is not None and counts.ended  # on a full disk it could not say so there
    if ended or value.get("finished") or not isinstance(pid, int):
        return False
    return _runs(pid, path, value | json_object(path.parent / facts_name(path.name.split(".")[0])))


def _runs(pid: int, path: Path, facts: dict[str, Any]) -> bool:
    """Whether the process of that number wrote the file, is of this host and still at work."""
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
