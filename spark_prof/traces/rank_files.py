"""Which files are traces of the ranks of one run: by what they hold, else by their names.

PyTorch writes its rank and the number of all ranks into a trace's head. A name's numbers tell where
a trace does not; of a store only names are known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import open_stream

RANK_NAMES: tuple[tuple[str, str, int], ...] = (
    (r"(?<![a-z])rank[-_]?(\d{1,5})(?!\d)", "llama_rank-3.json.gz", 3),
    (
        r"(?i)^(?!.*(?<![a-z])(?:dp|pp)[-_]?0*[1-9]).*(?<![a-z])tp[-_]?(\d{1,5})(?!\d)",
        "1767189312-TP-5-DP-0.trace.json.gz",
        5,
    ),
    (r"(?<![a-z])worker[-_]?(\d{1,5})(?!\d)", "worker7_step_12.1694128201545.pt.trace.json", 7),
    (r"_(\d{1,3})(?:\.pt)?(?:\.trace)?\.json", "trace_4.json.gz", 4),
)
"""How file names tell a rank: pattern, an example, and the rank that it tells.

A tensor-parallel number is the rank only where nothing else is parallel.
"""


def rank_named(name: str) -> int | None:
    """The rank that a file's name tells, None where it tells none."""
    matches = (re.search(pattern, name) for pattern, _, _ in RANK_NAMES)
    return next((int(match[1]) for match in matches if match), None)


_PLACE = re.compile(r"(rank|worker|(?<![a-z])(?:dp|pp|tp|ep))[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)
"""A number in a name that may tell ranks of one run apart, such as DP-1 or rank3."""
_GROUPS = ("dp", "pp", "tp", "ep")
"""Numbers of these may be sizes as well: of places in a group one is 0."""

_WORLD = re.compile(rb'"distributedInfo"\s*:\s*\{(.{0,4096})', re.DOTALL)
_RANK, _SIZE = (re.compile(rb'"%s"\s*:\s*(\d{1,9})' % key) for key in (b"rank", b"world_size"))
_MOST_LOOKED_INTO = 1024
_FEWEST = 2

_OF_CAPTURES = re.compile(r"(?:^|/)capture_traces/|graph_capture_rank")
_LOOKED_AT = 256 << 20
_MOST_READ = 16  # files of a folder whose content is searched for captures


@dataclass(frozen=True)
class InWorld:
    """A process of torch.distributed: its rank, of so many."""

    rank: int
    size: int


def world_of(path: Path) -> InWorld | None:
    """What a trace of PyTorch's profiler tells in its head; None where it tells nothing."""
    try:
        with open_stream(path) as blocks:
            head = next(blocks, b"")
    except CommandError:
        return None
    match = _WORLD.search(head)
    rank, size = (key.search(match[1]) if match else None for key in (_RANK, _SIZE))
    return InWorld(int(rank[1]), int(size[1])) if rank and size else None


def apart_by_name(names: Sequence[str]) -> bool:
    """Whether the names tell ranks of one run apart: each has another place, such as DP-0-TP-1."""
    places = [
        tuple(sorted((m[1].lower(), int(m[2])) for m in _PLACE.finditer(n.rsplit("/", 1)[-1])))
        for n in names
    ]
    kinds = {tuple(label for label, _ in place) for place in places}
    if len(set(places)) < len(places) or len(kinds) != 1 or kinds == {()}:
        return False
    for place in zip(*places, strict=True):
        label, numbers = place[0][0], {number for _, number in place}
        if label in _GROUPS and len(numbers) > 1 and 0 not in numbers:
            return False  # runs on 2 and on 4 GPUs
    return True


SAME_RANK = "two are of one rank"


def why_several(paths: Sequence[Path]) -> str:
    """Why these traces are recordings of their own; empty where they are the ranks of one run."""
    names = [path.name for path in paths]
    if len(paths) > _MOST_LOOKED_INTO:
        return "" if apart_by_name(names) else "they are too many to look into"
    worlds = [world_of(path) for path in paths]
    readable = [world for world in worlds if world is not None]
    sizes = sorted({world.size for world in readable})
    if len(sizes) > 1:
        return f"they are of runs of {' and '.join(map(str, sizes))} ranks"
    if len(readable) == len(paths) and len({world.rank for world in readable}) == len(readable):
        return ""
    if apart_by_name(names):
        return ""
    if len(readable) == len(paths):
        return SAME_RANK
    return "nothing tells that they are ranks of one run"


def one_run(names: Sequence[str], folder: Path | None) -> bool:
    """Whether traces are the ranks of one run.

    Args:
        names: their paths below the folder.
        folder: None where nothing but the names can be had.
    """
    if len(names) < _FEWEST:
        return False
    if folder is None:
        return apart_by_name(names)
    paths = [folder / name for name in names]
    if not why_several(paths):
        return True
    if len(paths) > _MOST_READ:
        return False
    # Captures of graphs, which belong to a trace, may have any name.
    runs = [path for path in paths if not _surely_captures(path)]
    return 0 < len(runs) < len(paths) and (len(runs) == 1 or not why_several(runs))


def _surely_captures(path: Path) -> bool:
    try:
        return holds_captures(path)
    except CommandError:  # whoever reads it says what is wrong with it
        return False


def holds_captures(path: Path) -> bool:
    """Whether a Kineto trace is of graphs being captured, and of none being replayed."""
    begun, read, end = bool(_OF_CAPTURES.search(path.as_posix())), 0, b""
    with open_stream(path) as chunks:
        for chunk in chunks:
            text = end + chunk
            if b"GraphLaunch" in text:
                return False
            begun |= b"StreamBeginCapture" in text
            read, end = read + len(chunk), text[-len(b"cudaStreamBeginCapture") :]
            if read > _LOOKED_AT:
                break
    return begun
