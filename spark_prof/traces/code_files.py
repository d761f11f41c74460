"""Finds machine code on disk: a cubin, a folder of them such as Triton's cache, a library.

Of a library what a GPU of one compute capability would load counts: the newest machine code that
runs on it, else PTX, which its driver would compile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError, os_errors
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.chunks import pieces_folder
from spark_prof.traces.cuda_tools import (
    FatFile,
    ToolError,
    find_tool,
    missing_tool,
    needed_tool,
    ptx_entries,
    read_fatbin,
    take_out,
)
from spark_prof.traces.readers.cubin import read_code


def library_code(
    library: Path, generation: int, seconds: float
) -> tuple[list[tuple[str, int]], list[str]]:
    """Each architecture of a library's cubins, such as sm_90a, and how many; those of its PTX.

    Args:
        generation: 12 for compute capability 12.x; 0 for none. Its plain cubins are taken out and
            looked at, because a build for a family looks plain in a list.
    """
    tool = needed_tool("cuobjdump")
    until = monotonic() + seconds
    files = read_fatbin(tool, library, seconds)
    counts = Counter(f"sm_{f.number}{f.suffix}" for f in files if not f.is_ptx)
    unclear = [
        f for f in files
        if not f.is_ptx and not f.suffix and generation and f.number // 10 == generation
    ]  # fmt: skip
    if unclear:
        counts.subtract(f"sm_{f.number}" for f in unclear)
        counts.update(_targets(tool, library, unclear, until - monotonic()))
    ptx = sorted({f"sm_{f.number}{f.suffix}" for f in files if f.is_ptx})
    return sorted((+counts).items()), ptx


def _targets(tool: Path, library: Path, files: Sequence[FatFile], seconds: float) -> Counter[str]:
    """What each of the cubins was compiled for."""
    with temporary_folder() as folder:
        targets: Counter[str] = Counter()
        for path in take_out(tool, library, files, folder, seconds):
            code = next(iter(read_code(path, ())), None)
            if code is not None:
                targets[code.architecture + code.suffix.replace("plain", "")] += 1
        return targets


_ELF = b"\x7fELF"
_CUDA = (190).to_bytes(2, "little")
_MOST_FILES = 20_000
_SECONDS = 120.0
_ARCHITECTURE = re.compile(r"(?:sm_?|compute_?)?(\d{1,3})(?:\.(\d))?([af]?)")


@dataclass
class CodeFiles:
    """What was found."""

    # The cubins, and which of their functions count, all if None.
    cubins: dict[Path, set[str] | None] = field(default_factory=dict)
    # Functions of which there is only PTX, with its architecture.
    compiled_by_driver: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # what the reader should know, one line each


def holds_machine_code(path: Path) -> bool:
    """Whether it is machine code or a library, or a folder with cubins that is no bundle."""
    try:
        if path.is_dir():
            if (path / META_FILE).exists() or pieces_folder(path).is_dir():
                return False
            return next(path.rglob("*.cubin"), None) is not None
        if not path.is_file():  # a pipe would wait for somebody who writes
            return False
        with path.open("rb") as file:
            return file.read(4) == _ELF
    except (OSError, ValueError):
        return False


@contextmanager
def code_files(path: Path, architecture: str | None = None) -> Iterator[CodeFiles]:
    """The machine code of a file or folder; what had to be taken out is removed again.

    Args:
        path: a cubin, a library or executable, or a folder of cubins.
        architecture: of a library: sm_121, 12.1 or 121; the newest that it holds if None.
    """
    head = b""
    if not path.is_dir():
        with os_errors(f"cannot read {path}"), path.open("rb") as file:
            head = file.read(64)
    whole = path.is_dir() or head[18:20] == _CUDA
    if whole and architecture:
        raise CommandError(f"{path} is no library; --arch chooses among the code of one")
    if path.is_dir():
        yield _folder(path)
    elif whole:
        yield CodeFiles({path: None})
    else:
        with temporary_folder() as folder:
            yield _library(path, architecture, folder)


def _folder(path: Path) -> CodeFiles:
    code = CodeFiles()
    for cubin in sorted(path.rglob("*.cubin")):
        if len(code.cubins) == _MOST_FILES:
            code.remarks.append(f"{path} holds more than {_MOST_FILES:,} cubins; the first count")
            break
        code.cubins[cubin] = None
    return code


def _library(path: Path, architecture: str | None, folder: Path) -> CodeFiles:
    tool = find_tool("cuobjdump")
    if tool is None:
        raise CommandError(f"{path} is a library: {missing_tool('cuobjdump')}")
    try:
        files = read_fatbin(tool, path, _SECONDS)
        if not files:
            raise CommandError(
                f"{path} holds no GPU code, or is cut short; give a library with kernels"
            )
        number, suffix = _requested_target(path, architecture, files)
        usable = [file for file in files if file.runs_on(number, suffix)]
        if not usable:
            raise CommandError(
                f"{path} holds nothing for sm_{number}{suffix}, only {_architectures(files)}"
            )
        extracted = {p.name: p for p in take_out(tool, path, usable, folder, _SECONDS)}
    except ToolError as error:
        raise CommandError(f"{path}: {error}") from error
    code = CodeFiles()
    if architecture is None and len({file.number for file in files}) > 1:
        code.remarks.append(
            f"{path} holds {_architectures(files)}; this is what sm_{number} loads, --arch chooses "
            "another"
        )
    # The newest code wins, machine code before PTX.
    usable.sort(key=lambda file: (file.is_ptx, -file.number, not file.suffix))
    symbols: set[str] = set()
    for file in usable:
        if file.name in extracted:
            _add(code, extracted[file.name], file, symbols)
    return code


def _add(code_files: CodeFiles, path: Path, file: FatFile, symbols: set[str]) -> None:
    """Adds those of the file's functions that no newer file has."""
    if file.is_ptx:
        new = [symbol for symbol in ptx_entries(path) if symbol not in symbols]
        code_files.compiled_by_driver |= dict.fromkeys(new, f"sm_{file.number}{file.suffix}")
    else:
        try:
            new = [code.symbol for code in read_code(path, ()) if code.symbol not in symbols]
        except CommandError as error:
            code_files.remarks.append(str(error))
            return
        code_files.cubins[path] = set(new)
    symbols.update(new)


def _requested_target(
    path: Path, architecture: str | None, files: list[FatFile]
) -> tuple[int, str]:
    """Compute capability times ten, and the suffix that was asked for."""
    if architecture is None:
        return max(file.number for file in files), ""
    match = _ARCHITECTURE.fullmatch(architecture.strip().lower())
    if match is None:
        raise CommandError(f"{architecture!r:.40} is no architecture; try --arch sm_121")
    number = int(match[1]) * 10 + int(match[2]) if match[2] else int(match[1])
    if number < 50:
        raise CommandError(
            f"{architecture!r:.40} is no architecture; {path} holds {_architectures(files)}"
        )
    return number, "a" if match[3] == "a" else ""


def _architectures(files: list[FatFile]) -> str:
    targets = {(f.number, f.suffix, f"sm_{f.number}{f.suffix}{' (PTX)' * f.is_ptx}") for f in files}
    return ", ".join(name for _, _, name in sorted(targets))
