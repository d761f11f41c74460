"""Gives each piece of a recording its kernels out of the SQLite exports of nsys.

One report holds all processes of a host, or one per worker where Ray started them; a rank's process
says its number. Exports are read once, as an import reads them, and what a rank launched in a piece
is left beside the other files of the piece.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.errors import CommandError
from spark_prof.traces.chunk_files import json_files, load_array, piece_numbers
from spark_prof.traces.chunks import (
    NODE_DTYPE,
    STEP_DTYPE,
    append_log,
    array_name,
    capture_name,
    write_array,
)
from spark_prof.traces.foreign import Foreign, ForeignProcess, Trace, Window, gpu_frame
from spark_prof.traces.readers.nsys_facts import (
    missing_kernels,
    nsys_lacks,
    whole_graphs,
)
from spark_prof.traces.readers.nsys_file import WHOLE_GRAPH
from spark_prof.traces.readers.nsys_import import nsys_export
from spark_prof.traces.tables import empty_frame

_TABLES = ("gpu", "launches", "overhead")
_LAUNCHES = "launch|memcpy|memset"


class _NsysProcess(NamedTuple):
    """A recorded process, and the first and last ns of each of its pieces."""

    name: str
    spans: dict[int, tuple[int, int]]


def link_exports(pieces: Path, exports: Sequence[Path]) -> None:
    """Finds each rank in the exports, and writes the work of its pieces and its graphs' nodes.

    What an export lacks goes to the rank's log. An export that cannot be read is as good as none.
    """
    opened: list[Foreign] = []
    processes: dict[int, list[tuple[Path, ForeignProcess]]] = {}
    for export in exports:
        try:
            opened.append(nsys_export(export, lambda _: False))
        except CommandError as error:
            append_log(pieces, "nsys", time.time_ns(), str(error))
            continue
        for process in opened[-1].processes:
            processes.setdefault(process.facts["pid"], []).append((export, process))
    ranks: dict[int, _NsysProcess] = {}
    for facts in json_files(pieces, "rank*.facts.json"):
        name, pid = str(facts.get("process")), facts.get("pid")
        candidates = processes.get(pid, []) if isinstance(pid, int) else []
        lines: tuple[str, ...]
        if len(candidates) == 1:
            export, process = candidates[0]
            try:
                lines = nsys_lacks(export, process.facts["pid"])
            except CommandError as error:
                lines = (str(error),)
            else:
                _write_nodes(pieces, name, process.nodes)
                ranks[id(process)] = _NsysProcess(name, _spans(pieces, name))
        elif candidates:
            lines = (f"several nsys reports hold process {pid}: whose kernels are its is unknown",)
        else:
            lines = (f"nsys saw no CUDA work of process {pid}: its kernels are missing",)
        for line in lines:
            append_log(pieces, name, time.time_ns(), line)
    for foreign in opened:
        owners = [ranks.get(id(process)) for process in foreign.processes]
        try:
            _write_work(pieces, foreign, owners)
        except CommandError as error:
            for owner in filter(None, owners):
                append_log(pieces, owner.name, time.time_ns(), str(error))


def read_nsys_piece(pieces: Path, process: str, piece: int) -> Trace | None:
    """What the rank launched in the steps of a piece; None where no export is its."""
    frames = {}
    for table in _TABLES:
        files = sorted(pieces.glob(_file_name(process, piece, table, "*")))
        try:
            parts = [pq.read_table(file).to_pandas() for file in files]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CommandError(f"{files[0]} cannot be read ({error})") from error
        if table == "gpu" and not parts:
            return None
        frames[table] = pd.concat([p for p in parts if len(p)] or parts[:1], ignore_index=True)
    gpu, launches = frames["gpu"], frames["launches"]
    named = launches["name"].str.lower().str.contains(_LAUNCHES)
    started = launches["correlation"].isin(gpu["correlation"])
    return Trace(
        gpu=gpu.drop(columns="launched"),
        launches=launches[named | started].reset_index(drop=True),
        overhead=frames["overhead"],
        lost=_lost(gpu, launches[named]),
    )


def _spans(pieces: Path, process: str) -> dict[int, tuple[int, int]]:
    spans = {}
    for piece in piece_numbers(pieces, process):
        steps = load_array(pieces / array_name(process, "steps", piece), STEP_DTYPE)
        if len(steps):
            spans[piece] = int(steps["start_ns"].min()), int(steps["end_ns"].max())
    return spans


def _file_name(process: str, piece: int, table: str, part: str) -> str:
    return f"{process}.{piece:05}.nsys-{table}-{part}.parquet"


def _write_nodes(pieces: Path, process: str, nodes: pd.DataFrame) -> None:
    if nodes.empty:
        return
    rows = np.zeros(len(nodes), NODE_DTYPE)
    rows["node"], rows["created_ns"] = nodes["node"], nodes["created_ns"]
    rows["original"] = np.where(nodes["original"] == nodes["node"], 0, nodes["original"])
    write_array(pieces, capture_name(process, "nodes"), rows)


def _write_work(pieces: Path, foreign: Foreign, owners: Sequence[_NsysProcess | None]) -> None:
    """Cuts the windows of an export into the pieces of the ranks that its processes are."""
    for rank in filter(None, owners):
        # A piece without work was recorded as well: its table is there, and empty.
        nothing = np.empty(0, np.int64)
        work = gpu_frame(name="", start_ns=nothing, end_ns=nothing).assign(launched=False)
        empty = (work, empty_frame("host"), empty_frame("overhead"))
        for piece in rank.spans:
            _write(pieces, rank.name, piece, 0, empty)
    for number, window in enumerate(foreign.windows, 1):
        owner = owners[window.process]
        for piece, span in owner.spans.items() if owner else ():
            frames = tuple(_inside(window, *span))
            if owner and any(map(len, frames)):
                _write(pieces, owner.name, piece, number, frames)


def _inside(window: Window, first: int, last: int) -> Iterator[pd.DataFrame]:
    """The rows of a window that belong to a piece; work without a launch by its own time."""
    trace, launched = window.trace, window.launch_ns >= 0
    begun = np.where(launched, window.launch_ns, trace.gpu["start_ns"].to_numpy())
    yield trace.gpu.assign(launched=launched)[(begun >= first) & (begun <= last)]
    for frame in (trace.launches, trace.overhead):
        yield frame[frame["start_ns"].between(first, last)]


def _write(
    pieces: Path, process: str, piece: int, part: int, frames: Sequence[pd.DataFrame]
) -> None:
    for table, frame in zip(_TABLES, frames, strict=True):
        texts = frame.columns[frame.dtypes == "category"]
        plain = pa.Table.from_pandas(
            frame.astype(dict.fromkeys(texts, "str")), preserve_index=False
        )
        pq.write_table(plain, pieces / _file_name(process, piece, table, f"{part:05}"))


def _lost(gpu: pd.DataFrame, launches: pd.DataFrame) -> tuple[str, ...]:
    lost = whole_graphs(int((gpu["name"] == WHOLE_GRAPH).sum()))
    idle = int((~launches["correlation"].isin(gpu["correlation"])).sum())
    lost += missing_kernels(idle, len(launches))
    unknown = int((~gpu["launched"]).sum())
    if unknown:
        lost.append(f"{unknown} kernels and copies have no launch in the nsys report, so no step")
    return tuple(lost)
