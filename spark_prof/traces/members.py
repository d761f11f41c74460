"""Finds the recordings in a folder or below a URL, at most four folders deep."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.pieces import pieces_folder
from spark_prof.traces.remote import is_url, list_files
from spark_prof.traces.sniff import format_of

MOST_MEMBERS = 10_000
_DEPTH = 4
_MOST_ENTRIES = 1_000_000
_TRACE_ENDINGS = (".json.gz", ".json.zst", ".sqlite", ".nsys-rep", ".hatchet", ".chrome_trace")
_TIMELINES = ("kineto", "proton-trace", "proton-tree")
"""Formats of traces whose files may end in .json, as much else does."""
_CAPTURES = "capture_traces"
_CAPTURE_FILE = "graph_capture_rank"
"""Folder and files with what vLLM and SGLang recorded while they captured CUDA graphs."""

_RANK = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)


class NoMembersError(CommandError):
    """A folder that holds neither a bundle nor a trace."""


@dataclass(frozen=True)
class Member:
    """One recording of a dataset.

    Attributes:
        name: its path below the dataset's folder, with / between the parts.
        source: its path or URL.
    """

    name: str
    source: str


def is_bundle(path: Path) -> bool:
    """Whether the folder is a bundle, or holds the pieces of one."""
    try:
        return path.is_dir() and ((path / META_FILE).is_file() or pieces_folder(path).is_dir())
    except OSError:
        return False


def find_members(source: str) -> list[Member]:
    """The recordings that a folder or URL holds, sorted by name; itself if it is one.

    A folder whose traces are those of several ranks, by their names, is one recording with all
    that lies below it. Links to folders are not followed, so that a link to a folder above ends
    nothing. What is hidden is left out, and so is what lies in a bundle.

    Raises:
        CommandError: there are none, or too many, or the folder cannot be read.
    """
    found = _in_store(source) if is_url(source) else _in_folder(Path(source), source)
    if len(found) > MOST_MEMBERS:
        raise CommandError(
            f"{source} holds more than {MOST_MEMBERS:,} recordings; give a folder of fewer"
        )
    if not found:
        raise NoMembersError(f"{source} holds no bundle and no trace; record or import one first")
    return sorted(found, key=lambda member: member.name)


def _in_folder(folder: Path, source: str) -> list[Member]:
    if is_bundle(folder) or folder.is_file():
        return [Member(folder.name or source, source)]
    if not folder.is_dir():
        raise CommandError(f"{folder} does not exist; give a bundle, a trace or a folder of them")
    found: list[Member] = []
    waiting = [("", 0)]
    seen = 0
    while waiting and len(found) <= MOST_MEMBERS:
        prefix, depth = waiting.pop()
        entries = _entries(folder / prefix)
        seen += len(entries)
        if seen > _MOST_ENTRIES:
            raise CommandError(f"{source} holds more than {_MOST_ENTRIES:,} files; give one below")
        traces: list[str] = []
        folders: list[tuple[str, int]] = []
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if is_bundle(folder / name):
                    found.append(Member(name, str(folder / name)))
                elif depth + 1 < _DEPTH:
                    folders.append((f"{name}/", depth + 1))
            elif entry.is_file() and (_is_trace(name) or _holds_trace(folder / name)):
                traces.append(name)
        if _one_run(traces, [name for name, _ in folders]):
            here = prefix.rstrip("/")
            member = Member(here, str(folder / here)) if here else Member(folder.name, source)
            found.append(member)
        else:
            found += [Member(name, str(folder / name)) for name in traces if not _captured(name)]
            waiting += folders
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise CommandError(f"cannot look into {folder}: {error.strerror or error}") from error


def _in_store(url: str) -> list[Member]:
    """The same below a URL, from the names of the files alone."""
    files = list_files(url)
    if files is None:
        return [Member(PurePosixPath(url).name or url, url)]
    if META_FILE in files:
        return [Member(PurePosixPath(url.rstrip("/")).name or url, url)]
    base = url.rstrip("/")
    bundles = {str(PurePosixPath(name).parent) for name in files if name.endswith(f"/{META_FILE}")}
    by_folder: dict[str, list[str]] = {}
    for name in files:
        path = PurePosixPath(name)
        if not any(str(folder) in bundles for folder in path.parents) and _is_trace(name):
            by_folder.setdefault("" if len(path.parts) == 1 else str(path.parent), []).append(name)
    found = [Member(name, f"{base}/{name}") for name in bundles]
    for folder, traces in by_folder.items():
        if _captured(f"{folder}/"):
            continue
        captures = str(PurePosixPath(folder) / _CAPTURES)
        if _one_run(traces, [f"{captures}/"] if captures in by_folder else []):
            whole = f"{base}/{folder}" if folder else url
            found.append(Member(folder or PurePosixPath(base).name, whole))
        else:
            found += [Member(name, f"{base}/{name}") for name in traces if not _captured(name)]
    return [member for member in found if member.name.count("/") < _DEPTH]


def _is_trace(name: str) -> bool:
    """Whether the name is that of a trace; other files may be, see `_holds_trace`."""
    name = name.lower()
    file = name.rsplit("/", 1)[-1]
    return name.endswith(_TRACE_ENDINGS) or (file.endswith(".json") and "trace" in file)


def _holds_trace(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return False
    try:
        return format_of(path) in _TIMELINES
    except CommandError:
        return False


def _captured(name: str) -> bool:
    """Whether the file belongs to the trace beside it and is none of its own."""
    return f"/{_CAPTURES}/" in f"/{name}" or _CAPTURE_FILE in name


def _one_run(traces: Iterable[str], folders: Iterable[str]) -> bool:
    """Whether the traces of a folder are the ranks of one run: each has another rank's number.

    One rank alone is a run only with the captures of its graphs beside it.
    """
    names = list(traces)
    own = [name.rsplit("/", 1)[-1] for name in names if not _captured(name)]
    numbers = [match[1] for name in own if (match := _RANK.search(name))]
    captures = len(own) < len(names) or any(_captured(name) for name in folders)
    alone = len(numbers) == 1 and not captures
    return bool(numbers) and len(numbers) == len(own) == len(set(numbers)) and not alone
