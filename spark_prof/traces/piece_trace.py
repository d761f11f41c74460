"""Finds and reads what the backend of a recording wrote about one piece, whichever it was."""

from __future__ import annotations

from pathlib import Path

from spark_prof.traces.nsys_pieces import read_nsys_piece
from spark_prof.traces.pieces import activity_name, kineto_name, names_name
from spark_prof.traces.readers.kineto import read_kineto
from spark_prof.traces.readers.trace import Trace

__all__ = ["read_trace", "trace_files"]


def read_trace(pieces: Path, process: str, piece: int) -> Trace | None:
    """The kernels of that piece; None where no backend wrote any.

    Raises:
        CommandError: what it wrote is missing in part or damaged.
    """
    raw = pieces / activity_name(process, piece)
    if raw.exists():
        from spark_prof.traces.readers.cupti import read_cupti

        return read_cupti(raw, pieces / names_name(process, piece))
    kineto = pieces / kineto_name(process, piece)
    if kineto.exists():
        return read_kineto(kineto)
    return read_nsys_piece(pieces, process, piece)


def trace_files(pieces: Path, process: str, piece: int) -> list[Path]:
    """The files that `read_trace` reads."""
    names = (activity_name, names_name, kineto_name)
    return [path for name in names if (path := pieces / name(process, piece)).exists()]
