"""Finds out what a person named: asked once a command, and answered by what is found there.

Recordings in a folder or below a URL are looked for at most four folders deep.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError, os_errors
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.chunk_files import being_recorded
from spark_prof.traces.chunks import pieces_folder
from spark_prof.traces.code_files import holds_machine_code
from spark_prof.traces.formats import BENCHMARK, format_of, named_as_trace
from spark_prof.traces.rank_files import one_run
from spark_prof.traces.remote import is_url, list_files, local_copy, without_password

MOST_MEMBERS = 10_000
_DEPTH = 4
_MOST_ENTRIES = 1_000_000
_TIMELINES = ("kineto", "proton-trace", "proton-tree")
"""Formats of traces whose files may end in .json, as much else does."""
_CAPTURES = "capture_traces"
_CAPTURE_FILE = "graph_capture_rank"
"""Folder and files with what vLLM and SGLang recorded while they captured CUDA graphs."""

RESULT_FILE = "result.json"  # of `spark-prof ab`, `tune` or `speculate`, in its run's folder
_RESULT_MARK = re.compile(rb'"kind": "spark-prof (ab|tune|speculate)"')
_RESULT_HEAD = 256

_WHOLE = ".steps.npy"  # written last of all files of a piece

_MOST_FILES = 10_000


class NoMembersError(CommandError):
    """A folder that holds neither a bundle nor a trace."""


@dataclass(frozen=True)
class Member:
    """One recording of a dataset."""

    name: str  # its path below the dataset's folder, with / between the parts
    source: str


@dataclass(frozen=True)
class Source:
    """Something that a person named, and where it lies; which kind of thing its class says."""

    name: str

    @property
    def path(self) -> Path:
        """Where it lies; of what is `Remote` nothing lies on this disk yet."""
        return Path(self.name)


@dataclass(frozen=True)
class BundleFolder(Source):
    """A bundle, or what a dead recording left to make one from."""


@dataclass(frozen=True)
class RecordingInProgress(Source):
    """A folder that a recording still writes into."""


@dataclass(frozen=True)
class TraceSource(Source):
    """What can be imported: a file in one of `formats.FORMATS`, or a folder with one run."""

    format: str


@dataclass(frozen=True)
class Folder(Source):
    """A folder, or a URL, with several recordings or with a bundle further down."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class LoadTest(Source):
    """The result of a load generator."""


@dataclass(frozen=True)
class AbResult(Source):
    """The result of `spark-prof ab`, in this file."""

    file: Path


@dataclass(frozen=True)
class TuneFile(AbResult):
    """The result of `spark-prof tune`, in this file."""


@dataclass(frozen=True)
class SpeculateFile(AbResult):
    """The result of `spark-prof speculate`, in this file."""


@dataclass(frozen=True)
class MachineCodeSource(Source):
    """A cubin, a folder of them, a library or an executable."""


@dataclass(frozen=True)
class Remote(Source):
    """One thing in a store, which has to be copied before it is known what it is."""


_RESULTS = {"ab": AbResult, "tune": TuneFile, "speculate": SpeculateFile}


def resolve(source: str) -> Source:
    """What the person named."""
    if is_url(source):
        members = _several(source)
        return Folder(source, members) if members else Remote(source)
    path = Path(source)
    if result := find_result(path):
        return _RESULTS[command_of_result(result)](source, result)
    if is_bundle(path):
        going_on = not (path / META_FILE).exists() and being_recorded(pieces_folder(path))
        return RecordingInProgress(source) if going_on else BundleFolder(source)
    if members := _several(source):
        return Folder(source, members)
    if holds_machine_code(path):
        return MachineCodeSource(source)
    kind = format_of(path)
    return LoadTest(source) if kind == BENCHMARK else TraceSource(source, kind)


@contextmanager
def fetched(source: str | Source) -> Iterator[Source]:
    """What the person named, on this disk: a copy of what is remote, which is gone afterwards."""
    resolved = resolve(source) if isinstance(source, str) else source
    with fetched_path(resolved.name) as path:
        yield resolve(str(path)) if is_url(resolved.name) else resolved


@contextmanager
def fetched_path(source: str) -> Iterator[Path]:
    """The path of what the person named; what a URL names is copied, and removed again."""
    if not is_url(source):
        yield Path(source)
        return
    with temporary_folder() as folder:
        try:
            yield local_copy(source, folder)
        except CommandError as error:
            # The copy is gone when this is read: what was named is not.
            address = without_password(source).rstrip("/")
            message = re.sub(
                rf"{re.escape(str(folder))}/[^/\s:;,'\"]+", lambda _: address, str(error)
            )
            error.args = (message,)
            raise


def find_result(path: Path) -> Path | None:
    """The file of a result of ab, tune or speculate, by itself or its folder; None for none."""
    with suppress(OSError, ValueError):
        path = path / RESULT_FILE if path.is_dir() else path
        if path.is_file() and command_of_result(path):
            return path
    return None


def command_of_result(path: Path) -> str:
    """The command whose result a file is, such as `ab`; empty for none.

    Only the first bytes are looked at: the file may be damaged further on.
    """
    with suppress(OSError), open(path, "rb") as file:
        if mark := _RESULT_MARK.search(file.read(_RESULT_HEAD)):
            return mark[1].decode()
    return ""


def _several(source: str) -> tuple[Member, ...]:
    """The members of what holds recordings and is none itself; none where it is or holds one."""
    if not is_url(source) and not os.path.isdir(source):
        return ()
    try:
        members = find_members(source)
    except NoMembersError:
        return ()
    # A trace alone in a folder may have a load generator's result beside it: they belong together.
    below = members[0].source != source and is_bundle(Path(members[0].source))
    return tuple(members) if len(members) > 1 or below else ()


def is_bundle(path: Path) -> bool:
    """Whether the folder is a bundle, or holds the pieces of one."""
    try:
        return path.is_dir() and ((path / META_FILE).is_file() or pieces_folder(path).is_dir())
    except OSError:
        return False


def find_members(source: str) -> list[Member]:
    """The recordings that a folder or URL holds, sorted by name; itself if it is one.

    A folder whose traces are the ranks of one run, or one with the captures of its graphs, is one
    recording with all that lies below it. Links to folders are not followed, so that a link to a
    folder above ends nothing. What is hidden is left out, and so is what lies in a bundle.
    """
    members = _in_store(source) if is_url(source) else _in_folder(Path(source), source)
    if len(members) > MOST_MEMBERS:
        raise CommandError(
            f"{source} holds more than {MOST_MEMBERS:,} recordings; give a folder of fewer"
        )
    if not members:
        raise NoMembersError(f"{source} holds no bundle and no trace; record or import one first")
    return sorted(members, key=lambda member: member.name)


_Below = tuple[Iterable[str], Iterable[str], Iterable[str]]
"""Bundles, other folders and traces right below a folder, by their paths from the source."""


def _in_folder(folder: Path, source: str) -> list[Member]:
    if is_bundle(folder) or folder.is_file():
        return [Member(folder.name or source, source)]
    if not folder.is_dir():
        raise CommandError(f"{folder} does not exist; give a bundle, a trace or a folder of them")
    count = 0

    def look(prefix: str) -> _Below:
        nonlocal count
        bundles: list[str] = []
        folders: list[str] = []
        traces: list[str] = []
        with os_errors(f"cannot look into {folder / prefix}"), os.scandir(folder / prefix) as all_:
            entries = [entry for entry in all_ if not entry.name.startswith(".")]
        for entry in entries:
            count += 1
            name = str(PurePosixPath(prefix, entry.name))
            if entry.is_dir(follow_symlinks=False):
                (bundles if is_bundle(folder / name) else folders).append(name)
            elif _is_file(entry) and (named_as_trace(name) or _holds_trace(folder / name)):
                traces.append(name)
        if count > _MOST_ENTRIES:
            raise CommandError(f"{source} holds more than {_MOST_ENTRIES:,} files; give one below")
        return bundles, folders, traces

    return _walked(source, str(folder), look)


def _in_store(url: str) -> list[Member]:
    """The same below a URL, from the names of the files alone."""
    files = list_files(url)
    if files is None or META_FILE in files:
        return [Member(PurePosixPath(url).name or url, url)]
    below: defaultdict[str, set[str]] = defaultdict(set)
    for name in files:
        for path in (PurePosixPath(name), *PurePosixPath(name).parents[:-1]):
            below[str(path.parent)].add(str(path))

    def look(prefix: str) -> _Below:
        names = below[prefix or "."]
        folders = {name for name in names if name in below}
        bundles = {name for name in folders if f"{name}/{META_FILE}" in below[name]}
        return bundles, folders - bundles, filter(named_as_trace, names - folders)

    return _walked(url, url.rstrip("/"), look)


def _walked(source: str, base: str, look: Callable[[str], _Below]) -> list[Member]:
    """Looks into folder after folder, but no further where one holds the ranks of one run."""

    def member(name: str) -> Member:
        whole = PurePosixPath(base).name, source
        return Member(name, f"{base}/{name}") if name else Member(*whole)

    members: list[Member] = []
    waiting = [""]
    while waiting and len(members) <= MOST_MEMBERS:
        prefix = waiting.pop()
        bundles, folders, traces = map(list, look(prefix))
        members += map(member, bundles)
        if _one_run(traces, folders, None if is_url(base) else Path(base)):
            members.append(member(prefix))
        else:
            members += [member(name) for name in traces if not _captured(name)]
            waiting += [name for name in folders if name.count("/") < _DEPTH - 1]
    return members


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


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


def _one_run(traces: Sequence[str], folders: Iterable[str], base: Path | None) -> bool:
    """Whether a folder's traces are the ranks of one run, or one with captures of its graphs."""
    uncaptured = [name for name in traces if not _captured(name)]
    if len(uncaptured) == 1:
        return len(uncaptured) < len(traces) or any(_captured(f"{name}/") for name in folders)
    return one_run(uncaptured, base)


def recordings_below(source: str) -> tuple[Member, ...]:
    """The recordings that a person named, whatever reads them: those of a folder, else itself."""
    resolved = resolve(source)
    if isinstance(resolved, Folder):
        return resolved.members
    return (Member(PurePosixPath(source).name or source, source),)


def source_state(source: str) -> str | None:
    """A text that changes when the source does; None where it is no local file or folder.

    Of files only names, sizes and times are looked at. Of a folder that is being recorded only
    whole pieces count: what a process writes all the time changes nothing.
    """
    digest = hashlib.sha256()
    try:
        for fact in _facts(Path(source)):
            digest.update(repr(fact).encode("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return None
    return digest.hexdigest()[:32]


def _facts(path: Path) -> Iterator[object]:
    if not path.is_dir():
        yield _state(path.stat())
        return
    pieces = pieces_folder(path)
    if pieces.is_dir() and not (path / META_FILE).exists():
        yield being_recorded(pieces)
        yield sorted(entry.name for entry in os.scandir(pieces) if entry.name.endswith(_WHOLE))
        return
    yield from _files(path)


def _files(folder: Path) -> Iterator[object]:
    """Every file below a folder; links to folders and what is hidden are left out."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            count += 1
            if count > _MOST_FILES:
                return
            path = os.path.join(place, name)
            yield os.path.relpath(path, folder), _state(os.stat(path))


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
