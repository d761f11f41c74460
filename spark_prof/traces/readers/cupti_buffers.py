"""Reads raw CUPTI buffers that spark-prof recorded when nothing else of the recording is left.

Format: docs/bundle.md, "Raw records". Buffers say what ran, what launched it and which NVTX ranges
were open; steps and modules stand in other files of a recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.traces.chunk_files import json_files
from spark_prof.traces.chunks import facts_name
from spark_prof.traces.foreign import Foreign, NamesModule, Process, Trace, Window
from spark_prof.traces.readers.cupti_trace import read_cupti
from spark_prof.traces.scopes import NO_SCOPE, ModuleRanges, Scopes, ScopeWalk

FORMAT = "cupti"

Int64s = npt.NDArray[np.int64]

_PIECE = re.compile(r"(?P<process>rank(?P<rank>\d{1,9}))\.(?P<piece>\d{5,9})\.activity\.bin")
_ROWS_OF_FACTS = ("modules", "layers")


@dataclass(frozen=True)
class Piece:
    """A file of buffers."""

    path: Path
    process: str
    rank: int | None  # its rank, None where the file's name does not tell
    number: int


def cupti_buffers(path: Path, names_module: NamesModule) -> Foreign:
    """Reads one file of buffers, or all those in a folder, one window a file.

    Args:
        path: the file, with its file of names beside it or not, or the folder.

    Raises:
        CommandError: there is none, or it cannot be read; the latter from the windows too.
    """
    files = sorted(path.glob("*.activity.bin")) if path.is_dir() else [path]
    pieces = [_piece(file) for file in files]
    if not pieces:
        raise CommandError(f"{path} holds no buffers of CUPTI (*.activity.bin)")
    by_process: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_process.setdefault(piece.process, []).append(piece)
    processes = [Process(mine[0].rank, _facts(mine[0])) for mine in by_process.values()]
    lost = [
        "raw CUPTI buffers tell neither steps nor modules: layers are known only where NVTX "
        "ranges name them"
    ]

    def windows() -> Iterator[Window]:
        for i, mine in enumerate(by_process.values()):
            for piece in sorted(mine, key=lambda piece: piece.number):
                trace = read_cupti(piece.path, _names(piece))
                lost.extend(f"{piece.path.name}: {line}" for line in trace.lost)
                yield _window(i, trace, processes[i].scopes, names_module)

    return Foreign(FORMAT, processes, windows(), lost)


def _piece(path: Path) -> Piece:
    match = _PIECE.fullmatch(path.name)
    if match is None:
        return Piece(path, path.name, None, 0)
    return Piece(path, match["process"], int(match["rank"]), int(match["piece"]))


def _names(piece: Piece) -> Path:
    """The file of names of the piece, else of the last one before it that has one.

    The addresses of names do not change while a process lives.
    """
    own = piece.path.with_name(piece.path.name.removesuffix(".activity.bin") + ".names.json")
    if own.exists() or piece.rank is None:
        return own
    found = piece.path.parent.glob(f"{piece.process}.*.names.json")
    return max((file for file in found if file.name < own.name), default=own)


def _facts(piece: Piece) -> dict[str, Any]:
    """What the process said about itself, if that is still there."""
    found = next(json_files(piece.path.parent, facts_name(piece.process)), {})
    return {key: value for key, value in found.items() if key not in _ROWS_OF_FACTS}


def _window(process: int, trace: Trace, scopes: Scopes, names_module: NamesModule) -> Window:
    markers = trace.markers.astype({"name": "category"})
    wanted = [name for name in markers["name"].cat.categories if names_module(str(name))]
    markers = markers.assign(name=markers["name"].cat.set_categories(wanted))
    markers = markers[markers["name"].notna() & (markers["thread"] >= 0)]
    columns = [markers[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "thread")]
    calls = ModuleRanges(*columns, np.asarray(markers["name"].cat.codes, np.int64))
    walk = ScopeWalk(scopes, list(map(str, wanted)))
    scope = walk.advance(calls, 0)
    launch_ns, thread = _launched(trace)
    return Window(
        process=process,
        trace=trace,
        launch_ns=launch_ns,
        thread=thread,
        scope=np.where(launch_ns >= 0, walk.at(thread, launch_ns), NO_SCOPE),
        calls=pd.DataFrame(
            {
                "scope": scope,
                "start_ns": calls.start,
                "end_ns": calls.end,
                "thread": calls.thread,
            }
        ),
    )


def _launched(trace: Trace) -> tuple[Int64s, Int64s]:
    """When and by which thread each row of `trace.gpu` was launched, -1 where nothing tells.

    Of calls inside one another, which share a correlation, the outermost counts.
    """
    calls = trace.launches.drop_duplicates("correlation")
    place = pd.Index(calls["correlation"]).get_indexer(pd.Index(trace.gpu["correlation"]))
    start, thread = (
        np.append(calls[column].to_numpy(np.int64), -1)[place] for column in ("start_ns", "thread")
    )
    return start, thread
