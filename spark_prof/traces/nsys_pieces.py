"""Gives each piece of a recording its kernels out of the SQLite exports of nsys.

One report holds all processes of a host, or one per worker where Ray started them; a rank's process
says its number. Exports are read once, as an import reads them, and what a rank launched in a piece
is left beside the other files of the piece.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Trace, Window, gpu_frame
from spark_prof.traces.piece_files import json_files, load_array, piece_numbers
from spark_prof.traces.pieces import (
    STEP_DTYPE,
    append_log,
    array_name,
    capture_name,
    write_array,
)
from spark_prof.traces.readers.nsys_facts import (
    nsys_lacks,
    nsys_nodes,
    nsys_processes,
    whole_graphs,
)
from spark_prof.traces.readers.nsys_import import nsys_export
from spark_prof.traces.readers.nsys_work import WHOLE_GRAPH
from spark_prof.traces.tables import empty_frame

_TABLES = ("gpu", "launches", "overhead")
_LAUNCHES = "launch|memcpy|memset"
_UNMATCHED = 0.1
"""Above this share of launches without work on the GPU, the report is not whole."""


@dataclass(frozen=True)
class _Rank:
    """A recorded process, and the first and last ns of each of its pieces."""

    name: str
    spans: Mapping[int, tuple[int, int]]


def link_exports(pieces: Path, exports: Sequence[Path]) -> None:
    """Finds each rank in the exports, and writes the work of its pieces and its graphs' nodes.

    What an export lacks goes to the rank's log. An export that cannot be read is as good as none.
    """
    found: dict[int, list[Path]] = {}
    for export in exports:
        try:
            for number in nsys_processes(export):
                found.setdefault(number, []).append(export)
        except CommandError as error:
            append_log(pieces, "nsys", time.time_ns(), str(error))
    ranks: dict[Path, dict[int, _Rank]] = {}
    for facts in json_files(pieces, "rank*.facts.json"):
        process, pid = str(facts.get("process")), facts.get("pid")
        candidates = found.get(pid, []) if isinstance(pid, int) else []
        if not isinstance(pid, int) or len(candidates) != 1:
            line = (
                f"several nsys reports hold process {pid}: whose kernels are its is unknown"
                if candidates
                else f"nsys saw no CUDA work of process {pid}: its kernels are missing"
            )
            append_log(pieces, process, time.time_ns(), line)
            continue
        try:
            for line in nsys_lacks(candidates[0], pid):
                append_log(pieces, process, time.time_ns(), line)
            nodes = nsys_nodes(candidates[0], pid)
        except CommandError as error:
            append_log(pieces, process, time.time_ns(), str(error))
            continue
        if len(nodes):
            write_array(pieces, capture_name(process, "nodes"), nodes)
        ranks.setdefault(candidates[0], {})[pid] = _Rank(process, _spans(pieces, process))
    for export, mine in ranks.items():
        try:
            _write_work(pieces, export, mine)
        except CommandError as error:
            for rank in mine.values():
                append_log(pieces, rank.name, time.time_ns(), str(error))


def read_nsys_piece(pieces: Path, process: str, piece: int) -> Trace | None:
    """What the rank launched in the steps of a piece; None where no export is its.

    Raises:
        CommandError: what was left beside the piece is damaged.
    """
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
    found = {}
    for piece in piece_numbers(pieces, process):
        steps = load_array(pieces / array_name(process, "steps", piece), STEP_DTYPE)
        if len(steps):
            found[piece] = int(steps["start_ns"].min()), int(steps["end_ns"].max())
    return found


def _file_name(process: str, piece: int, table: str, part: str) -> str:
    return f"{process}.{piece:05}.nsys-{table}-{part}.parquet"


def _write_work(pieces: Path, export: Path, ranks: Mapping[int, _Rank]) -> None:
    """Cuts the windows of an export into the ranks' pieces."""
    foreign = nsys_export(export, lambda _: False)
    owners = [ranks.get(int(process.facts["pid"])) for process in foreign.processes]
    for rank in ranks.values():
        # A piece without work was recorded as well: its table is there, and empty.
        nothing = np.empty(0, np.int64)
        work = gpu_frame(name="", start_ns=nothing, end_ns=nothing).assign(launched=False)
        empty = (
            work,
            empty_frame("host").drop(columns="step", errors="ignore"),
            empty_frame("overhead"),
        )
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
    trace, known = window.trace, window.launch_ns >= 0
    begun = np.where(known, window.launch_ns, trace.gpu["start_ns"].to_numpy())
    yield trace.gpu.assign(launched=known)[(begun >= first) & (begun <= last)]
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
    if idle > _UNMATCHED * len(launches):
        lost.append(
            f"{idle} of {len(launches)} launches have no kernel in the nsys report; an nsys that "
            "is older than the driver misses kernels, take the one of your CUDA toolkit or a newer"
        )
    unknown = int((~gpu["launched"]).sum())
    if unknown:
        lost.append(f"{unknown} kernels and copies have no launch in the nsys report, so no step")
    return tuple(lost)
