"""Ties the SQLite exports of nsys to the recorded ranks, and reads a piece's kernels from them.

One report holds all processes of a host, or one per worker where Ray started them. A rank's process
says its number, and which export is its is kept in `<process>.export.json`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Trace
from spark_prof.traces.piece_files import json_files, load_array
from spark_prof.traces.pieces import (
    STEP_DTYPE,
    append_log,
    array_name,
    capture_name,
    write_array,
    write_json,
)
from spark_prof.traces.readers.nsys import nsys_trace
from spark_prof.traces.readers.nsys_facts import nsys_lacks, nsys_nodes, nsys_processes
from spark_prof.traces.readers.nsys_file import index_export


def export_link(process: str) -> str:
    """The JSON file that names a rank's export and its process in there."""
    return f"{process}.export.json"


def link_exports(pieces: Path, exports: Sequence[Path]) -> None:
    """Finds each rank in the exports, and writes the nodes of its CUDA graphs.

    What an export lacks goes to the rank's log. An export that cannot be read is as good as none.

    Args:
        pieces: the folder of pieces, in which the exports lie.
        exports: what nsys exported.
    """
    found: dict[int, list[Path]] = {}
    for export in exports:
        try:
            index_export(export)
            for number in nsys_processes(export):
                found.setdefault(number, []).append(export)
        except CommandError as error:
            append_log(pieces, "nsys", time.time_ns(), str(error))
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
            _link(pieces, process, pid, candidates[0])
        except CommandError as error:
            append_log(pieces, process, time.time_ns(), str(error))


def read_nsys_piece(pieces: Path, process: str, piece: int) -> Trace | None:
    """What the rank launched in the steps of a piece; None where no export is its.

    Raises:
        CommandError: the export is damaged, or does not say when its session started.
    """
    link = next(json_files(pieces, export_link(process)), {})
    name, pid = link.get("export"), link.get("pid")
    if not isinstance(name, str) or not isinstance(pid, int):
        return None
    path = pieces / Path(name).name
    steps = load_array(pieces / array_name(process, "steps", piece), STEP_DTYPE)
    if not len(steps):
        return None
    return nsys_trace(path, pid, int(steps["start_ns"].min()), int(steps["end_ns"].max()))


def _link(pieces: Path, process: str, pid: int, export: Path) -> None:
    for line in nsys_lacks(export, pid):
        append_log(pieces, process, time.time_ns(), line)
    nodes = nsys_nodes(export, pid)
    if len(nodes):
        write_array(pieces, capture_name(process, "nodes"), nodes)
    write_json(pieces, export_link(process), {"export": export.name, "pid": pid})
