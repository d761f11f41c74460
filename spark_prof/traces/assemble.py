"""Makes a bundle out of the pieces that the recorded processes flushed.

Memory stays bounded: a piece is read, joined with its ranges and written as one row group before
the next one is looked at.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE, SCHEMA, Bundle, Meta, table_file
from spark_prof.traces.graph_nodes import GraphNodes, capture_rows, place_nodes
from spark_prof.traces.join import join_piece
from spark_prof.traces.piece_trace import read_trace
from spark_prof.traces.pieces import (
    CAPTURE_DTYPE,
    ENGINE_DTYPE,
    EVENT_DTYPE,
    NODE_DTYPE,
    STEP_DTYPE,
    array_name,
    capture_name,
    pieces_folder,
)
from spark_prof.traces.tables import TABLES

__all__ = ["assemble", "open_bundle"]

RECORDING_FILE = "recording.json"
"""In the pieces folder: the command and settings of the recording that writes there."""

_CLOCK_SECONDS = 3600
"""By how much a process may seem to have started late, because the clock was set."""


class _Writers:
    """The table files that are being written, one Parquet writer each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._open: dict[str, pq.ParquetWriter] = {}
        self.rows: dict[str, int] = {}

    def add(self, table: str, rank: int, frame: pd.DataFrame) -> None:
        """Appends a frame with the table's columns as one row group."""
        name = table_file(table, rank)
        schema = TABLES[table].schema
        if name not in self._open:
            writer = pq.ParquetWriter(self._folder / name, schema, compression="zstd")
            self._open[name] = self._stack.enter_context(writer)
            self.rows[name] = 0
        if frame.empty:
            return
        columns = [pa.array(frame[f.name], type=f.type, from_pandas=True) for f in schema]
        self._open[name].write_table(pa.Table.from_arrays(columns, schema=schema))
        self.rows[name] += len(frame)


def assemble(
    folder: Path, *, state: str, progress: Callable[[int, int], None] | None = None
) -> Bundle:
    """Turns the pieces in the folder into a bundle and removes them.

    Args:
        folder: the bundle's folder, which holds a folder of pieces.
        state: complete, interrupted or salvaged; see `Meta`.
        progress: told after each piece how many of how many are done.

    Raises:
        CommandError: no step was recorded, or the folder cannot be written.
    """
    pieces = pieces_folder(folder)
    facts = {f["process"]: f for f in _json_files(pieces, "*.facts.json")}
    found = {name: _piece_numbers(pieces, name) for name in facts}
    total = sum(map(len, found.values()))
    if not total:
        raise CommandError(f"no step was recorded in {folder}; record again")
    done = 0
    lost: list[str] = []
    try:
        with ExitStack() as stack:
            writers = _Writers(folder, stack)
            for name, fact in sorted(facts.items()):
                rank = int(fact["rank"])
                if name.startswith("engine"):
                    lost += _add_engine(writers, pieces, name, rank)
                    continue
                _add_model(writers, fact, rank)
                nodes = _add_graphs(writers, pieces, fact)
                for piece in found[name]:
                    lost += _add_piece(writers, pieces, fact, piece, nodes)
                    done += 1
                    if progress is not None:
                        progress(done, total)
            log = pd.DataFrame(_log_lines(pieces), columns=TABLES["log"].schema.names)
            writers.add("log", 0, log)
            lost += [f"{row.process}: {row.message}" for row in log.itertuples()]
        recording = next(_json_files(pieces, RECORDING_FILE), {})
        meta = Meta(
            schema=SCHEMA,
            spark_prof=_version(),
            state=state,
            command=tuple(recording.get("command", ())),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            backend=_backend(recording, facts.values()),
            settings=recording.get("settings", {}),
            facts={name: _without_rows(fact) for name, fact in facts.items()},
            lost=tuple(dict.fromkeys(lost)),
            tables=writers.rows,
        )
        meta.write(folder)
    except OSError as error:
        for path in folder.glob("*.parquet"):
            with suppress(OSError):
                path.unlink()
        raise CommandError(
            f"cannot write the bundle {folder}: {error.strerror or error}; the recorded pieces "
            f"are kept, free some space and run: spark-prof report {folder}"
        ) from error
    bundle = Bundle(folder)
    shutil.rmtree(pieces, ignore_errors=True)
    return bundle


def open_bundle(folder: Path) -> Bundle:
    """Opens a bundle; one whose recording died is first made from its pieces.

    Raises:
        CommandError: the folder is no bundle, is damaged, or is still being recorded.
    """
    pieces = pieces_folder(folder)
    try:
        whole = (folder / META_FILE).exists() or not pieces.is_dir()
    except OSError as error:
        raise CommandError(f"cannot look into {folder}: {error.strerror or error}") from error
    if whole:
        return Bundle(folder)
    # The recorder says so as well: a container's process numbers mean nothing out here.
    if any(_runs(path) for path in (*pieces.glob("*.progress.json"), pieces / RECORDING_FILE)):
        raise CommandError(f"{folder} is still being recorded; wait for the recording to end")
    return assemble(folder, state="salvaged")


def _runs(path: Path) -> bool:
    """Whether the process that wrote the file is still at work, and no later one of its number."""
    value = next(_json_files(path.parent, path.name), {})
    pid = value.get("pid")
    if value.get("finished") or not isinstance(pid, int):
        return False
    try:
        return float(psutil.Process(pid).create_time()) <= path.stat().st_mtime + _CLOCK_SECONDS
    except (OSError, ValueError, OverflowError, psutil.Error):
        return False


def _piece_numbers(pieces: Path, name: str) -> list[int]:
    numbers = (path.name.split(".")[1] for path in pieces.glob(f"{name}.*.steps.npy"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def _add_engine(writers: _Writers, pieces: Path, name: str, rank: int) -> list[str]:
    """Writes the scheduler's rows; returns what they lack."""
    lost = []
    for path in sorted(pieces.glob(f"{name}.*.engine.npy")):
        try:
            writers.add("engine", rank, pd.DataFrame(_load(path, ENGINE_DTYPE)))
        except CommandError as error:
            lost.append(f"{name}: {error}")
    return lost


def _add_model(writers: _Writers, fact: dict[str, Any], rank: int) -> None:
    modules = pd.DataFrame(fact["modules"], columns=["path", "type", "layer", "component"])
    writers.add("modules", rank, modules.rename_axis("module").reset_index())
    writers.add("layers", rank, pd.DataFrame(fact["layers"], columns=TABLES["layers"].schema.names))


def _add_graphs(writers: _Writers, pieces: Path, fact: dict[str, Any]) -> GraphNodes | None:
    """Writes the nodes of the rank's CUDA graphs; None where it captured none."""
    name, rank = fact["process"], int(fact["rank"])
    try:
        nodes, events, captures = (
            _load(pieces / capture_name(name, kind), dtype)
            for kind, dtype in (
                ("nodes", NODE_DTYPE), ("capture-events", EVENT_DTYPE), ("captures", CAPTURE_DTYPE),
            )
        )  # fmt: skip
    except CommandError:
        return None
    placed = place_nodes(nodes, events, captures, [m["layer"] for m in fact["modules"]])
    writers.add("graph_nodes", rank, placed.frame)
    writers.add("captures", rank, capture_rows(captures))
    return placed


def _add_piece(
    writers: _Writers, pieces: Path, fact: dict[str, Any], piece: int, nodes: GraphNodes | None
) -> list[str]:
    """Joins and writes one piece; returns what it lacks."""
    name, rank = fact["process"], int(fact["rank"])
    try:
        steps = _load(pieces / array_name(name, "steps", piece), STEP_DTYPE)
        events = _load(pieces / array_name(name, "events", piece), EVENT_DTYPE)
    except CommandError as error:
        return [f"{name}, piece {piece}: {error}"]
    read = partial(read_trace, pieces, name, piece)
    joined = join_piece(steps, events, fact["modules"], read, piece, nodes)
    writers.add("steps", rank, joined.steps)
    writers.add("ranges", rank, joined.ranges)
    writers.add("kernels", rank, joined.kernels)
    writers.add("host", rank, joined.host)
    writers.add("overhead", rank, joined.overhead)
    return [f"{name}, piece {piece}: {text}" for text in joined.lost]


def _load(path: Path, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CommandError(f"{path.name} is missing or damaged") from error
    if array.dtype != kind:
        raise CommandError(f"{path.name} was written by another spark-prof")
    return array


def _json_files(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(pattern)):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a copy that was cut off
            continue
        if isinstance(value, dict):
            yield value


def _log_lines(pieces: Path) -> list[dict[str, Any]]:
    lines = []
    for path in sorted(pieces.glob("*.log.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                value = json.loads(line)
            except ValueError:  # the line that a killed process was writing
                continue
            if isinstance(value, dict) and value.keys() >= set(TABLES["log"].schema.names):
                lines.append(value)
    return lines


def _backend(recording: dict[str, Any], facts: Iterable[dict[str, Any]]) -> str:
    """What watched the kernels: what a worker says, else what was asked for."""
    wanted = str(recording.get("settings", {}).get("backend", "torch"))
    return next((str(fact["backend"]) for fact in facts if "backend" in fact), wanted)


def _without_rows(fact: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fact.items() if key not in ("modules", "layers")}


def _version() -> str:
    try:
        return version("spark-prof")
    except PackageNotFoundError:
        return "unknown"
