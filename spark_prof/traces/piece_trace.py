"""Finds and reads what the backend of a recording wrote about one piece, whichever it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spark_prof.traces.foreign import Trace
from spark_prof.traces.nsys_pieces import read_nsys_piece
from spark_prof.traces.pieces import activity_name, kineto_name, names_name
from spark_prof.traces.readers.kineto import read_kineto


def read_trace(pieces: Path, process: str, piece: int) -> Trace | None:
    """The kernels of that piece; None where no backend wrote any.

    Raises:
        CommandError: what it wrote is missing in part or damaged.
    """
    raw = pieces / activity_name(process, piece)
    if raw.exists():
        from spark_prof.traces.readers.cupti import read_cupti

        names, lost = _names(pieces, process, piece)
        trace = read_cupti(raw, names)
        return replace(trace, lost=(*trace.lost, *lost))
    kineto = pieces / kineto_name(process, piece)
    if kineto.exists():
        return read_kineto(kineto)
    return read_nsys_piece(pieces, process, piece)


def _names(pieces: Path, process: str, piece: int) -> tuple[Path, list[str]]:
    """The piece's file of names, and what to say about it.

    A process that was killed within a piece had not written it yet. The addresses of names do not
    change while a process lives, so the last piece before it has most of them.
    """
    own = pieces / names_name(process, piece)
    if own.exists():
        return own, []
    for number in reversed(range(piece)):
        other = pieces / names_name(process, number)
        if other.exists():
            return other, [f"its names were not flushed: those of piece {number} are used"]
    return own, []


def trace_files(pieces: Path, process: str, piece: int) -> list[Path]:
    """The files that `read_trace` reads."""
    names = (activity_name, names_name, kineto_name)
    return [path for name in names if (path := pieces / name(process, piece)).exists()]
