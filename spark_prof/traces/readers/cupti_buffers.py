"""Reads raw CUPTI buffers that spark-prof recorded when nothing else of the recording is left.

Format: docs/bundle.md, "Raw records". Buffers say what ran, what launched it and which NVTX ranges
were open; steps and modules stand in other files of a recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.chunk_files import json_object
from spark_prof.traces.chunks import facts_name
from spark_prof.traces.foreign import Foreign, ForeignProcess, NamesModule, Trace, Window
from spark_prof.traces.readers.cupti_trace import read_cupti
from spark_prof.traces.scopes import NO_SCOPE, ModuleRanges, Scopes, ScopeWalk

FORMAT = "cupti"


_PIECE = re.compile(r"(?P<process>rank\d{1,9})\.\d{5,9}\.activity\.bin")
_ROWS_OF_FACTS = ("modules", "layers")


def cupti_buffers(path: Path, names_module: NamesModule) -> Foreign:
    """Reads one file of buffers, or all those in a folder, one window a file."""
    files = sorted(path.glob("*.activity.bin")) if path.is_dir() else [path]
    if not files:
        raise CommandError(f"{path} holds no buffers of CUPTI (*.activity.bin)")
    by_process: dict[str, list[Path]] = {}
    for file in files:
        match = _PIECE.fullmatch(file.name)
        by_process.setdefault(match["process"] if match else file.name, []).append(file)
    processes = [_process(name, mine[0].parent) for name, mine in by_process.items()]
    lost = [
        "raw CUPTI buffers tell neither steps nor modules: layers are known only where NVTX "
        "ranges name them"
    ]

    def windows() -> Iterator[Window]:
        for i, mine in enumerate(by_process.values()):
            for file in sorted(mine, key=lambda file: (len(file.name), file.name)):
                trace = read_cupti(file, names_file(file))
                lost.extend(f"{file.name}: {line}" for line in trace.lost)
                yield _window(i, trace, processes[i].scopes, names_module)

    return Foreign(FORMAT, processes, windows(), lost)


def names_file(buffers: Path) -> Path:
    """The file of names of a file of buffers, else of the last one before it that has one.

    A process that was killed within a piece had not written it yet. The addresses of names do not
    change while a process lives, so the last piece before it has most of them.
    """
    beside = buffers.with_name(buffers.name.removesuffix(".activity.bin") + ".names.json")
    match = _PIECE.fullmatch(buffers.name)
    if beside.exists() or match is None:
        return beside
    candidates = buffers.parent.glob(f"{match['process']}.*.names.json")
    return max((file for file in candidates if file.name < beside.name), default=beside)


def _process(name: str, folder: Path) -> ForeignProcess:
    """The process, with what it said about itself if that is still there."""
    document = json_object(folder / facts_name(name))
    facts = {key: value for key, value in document.items() if key not in _ROWS_OF_FACTS}
    rank = name.removeprefix("rank")
    return ForeignProcess(int(rank) if rank.isdecimal() else None, facts)


def _window(process: int, trace: Trace, scopes: Scopes, names_module: NamesModule) -> Window:
    markers = trace.markers.astype({"name": "category"})
    module_names = [name for name in markers["name"].cat.categories if names_module(str(name))]
    markers = markers.assign(name=markers["name"].cat.set_categories(module_names))
    markers = markers[markers["name"].notna() & (markers["thread"] >= 0)]
    start, end, of_range = (
        markers[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "thread")
    )
    codes = np.asarray(markers["name"].cat.codes, np.int64)
    calls = ModuleRanges(start, end, of_range, codes)
    walk = ScopeWalk(scopes, list(map(str, module_names)))
    scope = walk.advance(calls, 0)
    launch_ns, thread = _launched(trace)
    return Window(
        process=process,
        trace=trace,
        launch_ns=launch_ns,
        thread=thread,
        scope=np.where(launch_ns >= 0, walk.at(thread, launch_ns), NO_SCOPE),
        calls=calls.calls(scope),
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
