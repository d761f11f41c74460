"""Finds and runs the tools of the CUDA toolkit that read machine code: cuobjdump and nvdisasm.

They are looked for as PyPI wheels install them (extra `sass`), then on the PATH, then in the CUDA
toolkit; where SPARK_PROF_CUDA_TOOLS names a folder, only there. What they print is read line by
line; a tool that hangs is stopped.

A fat binary holds the same functions for several architectures as cubins, and some as PTX only,
which the driver compiles for the GPU when it loads them. `cuobjdump -lelf` and `-lptx` list files
such as ``lib.7.sm_90a.cubin``, one a line; `-xelf` and `-xptx` write them into the current folder.

An instruction is 16 bytes on every architecture since Volta, and kernels repeat most of theirs.
Only distinct instructions are disassembled, as a raw binary (`nvdisasm --binary SM90`): ELF files
of others are never given to the tool, and several times less is disassembled. Output, a line an
instruction: ``/*0010*/  @!P0 HMMA.16816.F32 R4, R4, R8, R12 ;``. Instructions that it does not know
it names on stderr, all of them, and then prints nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.cores import cores
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.extras import install_command

FOLDER_VARIABLE = "SPARK_PROF_CUDA_TOOLS"  # environment variable that names the tools' folder

_LONGEST_LINE = 1 << 16
_MOST_STDERR = 1 << 22  # bytes of a tool's complaints that are kept


class ToolError(CommandError):
    """A tool failed; `stderr` is what it printed on stderr, empty where it was stopped."""

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr


def find_tool(name: str) -> Path | None:
    """The tool's file, such as that of nvdisasm; None where it is not installed."""
    usable = (path for path in _places(name) if path.is_file() and os.access(path, os.X_OK))
    return next(usable, None)


def _places(name: str) -> Iterator[Path]:
    if chosen := os.environ.get(FOLDER_VARIABLE):
        yield Path(chosen) / name
        return
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    wheels = [path for folder in folders for path in folder.glob(f"cu*/bin/{name}")]
    yield from sorted(wheels, key=lambda path: path.parts[-3], reverse=True)
    if on_path := shutil.which(name):
        yield Path(on_path)
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if home:
            yield Path(home) / "bin" / name


def missing_tool(name: str) -> str:
    """What to do where the tool is not installed."""
    return f"{name} is not installed; run: {install_command('sass')}"


class MissingToolError(CommandError):
    """One of CUDA's tools is not installed."""


def needed_tool(name: str) -> Path:
    """The tool's file; a MissingToolError where it is not installed."""
    tool = find_tool(name)
    if tool is None:
        raise MissingToolError(missing_tool(name))
    return tool


def run_tool(
    command: Sequence[str | Path],
    seconds: float,
    on_line: Callable[[bytes], object],
    folder: Path | None = None,
) -> None:
    """Runs a tool and hands over what it prints.

    Raises:
        ToolError: it cannot be started, failed or took too long.
    """
    name = Path(command[0]).name
    stopped = threading.Event()
    with TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                [os.fspath(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=stderr, env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"cannot run {name}: {error.strerror or error}") from error

        def stop() -> None:
            stopped.set()
            process.kill()

        timer = threading.Timer(max(seconds, 0.0), stop)
        with process:
            stdout = process.stdout
            assert stdout is not None
            timer.start()
            try:
                for line in iter(lambda: stdout.readline(_LONGEST_LINE), b""):
                    on_line(line)
                process.wait()
            except BaseException:
                process.kill()
                raise
            finally:
                timer.cancel()
        stderr.seek(0)
        text = stderr.read(_MOST_STDERR).decode(errors="replace").strip()
    if stopped.is_set():
        raise ToolError(f"{name} was stopped after {seconds:.0f} seconds")
    if process.returncode:
        first = text.partition("\n")[0] or f"exit code {process.returncode}"
        raise ToolError(f"{name} failed: {first:.200}", text)


_LISTED = re.compile(rb"(?:ELF|PTX) file\s+\d+: (\S+\.sm_(\d{2,4})([af]?)\.(cubin|ptx))\s*$")
_NO_CODE = ("does not contain device code", "No PTX file found", "No ELF file found")
_ENTRY = re.compile(rb"^\s*(?:\.visible |\.weak )?\s*\.entry\s+([\w$.]{1,16384})")
_LARGEST_KB = 2 << 20  # of a file that is taken out, in 512-byte blocks or KiB as the shell counts


@dataclass(frozen=True)
class FatFile:
    """A cubin or PTX file inside a library: its name, compute capability times ten, and suffix.

    The suffix is a or empty; files for a family, built with an f, look plain here.
    """

    name: str
    number: int
    suffix: str

    @property
    def is_ptx(self) -> bool:
        """Whether the driver would have to compile it."""
        return self.name.endswith(".ptx")

    def runs_on(self, number: int, suffix: str) -> bool:
        """Whether a GPU of that compute capability takes it.

        Machine code runs within its generation, that with an a on its own architecture only; PTX
        can be compiled for all later ones.
        """
        if self.suffix:
            return self.number == number and suffix in ("", self.suffix)
        if self.is_ptx:
            return self.number <= number
        return self.number // 10 == number // 10 and self.number <= number


def read_fatbin(tool: Path, library: Path, seconds: float) -> list[FatFile]:
    """What the library holds; empty where it has no GPU code."""
    files: list[FatFile] = []

    def note(line: bytes) -> None:
        if match := _LISTED.search(line):
            name = match[1].decode(errors="replace")
            files.append(FatFile(name, int(match[2]), match[3].decode()))

    for option in ("-lelf", "-lptx"):
        try:
            run_tool([tool, option, library.absolute()], seconds, note)
        except ToolError as error:
            if not any(words in error.stderr for words in _NO_CODE):
                raise
    return files


def take_out(
    tool: Path, library: Path, files: Sequence[FatFile], folder: Path, seconds: float
) -> list[Path]:
    """Writes files of the library into a folder; the paths of those that are there."""
    for option, kind in (("-xelf", "cubin"), ("-xptx", "ptx")):
        # A name as a whole could be part of another one; that of an architecture is short.
        parts = {f".{f.name.rsplit('.', 2)[1]}.{kind}" for f in files if f.name.endswith(kind)}
        if parts:
            limited: list[str | Path] = [
                "/bin/sh",
                "-c",
                f'ulimit -f {_LARGEST_KB}; exec "$0" "$@"',
                tool,
            ]
            pattern = ",".join(sorted(parts))
            run_tool([*limited, option, pattern, library.absolute()], seconds, len, folder)
    paths = (folder / Path(file.name).name for file in files)
    return [path for path in paths if path.is_file()]


def ptx_entries(path: Path) -> list[str]:
    """The symbols of the kernels in a PTX file."""
    with path.open("rb") as lines:
        matches = (_ENTRY.match(line) for line in iter(lambda: lines.readline(1 << 20), b""))
        return [match[1].decode(errors="replace") for match in matches if match]


Instructions = npt.NDArray[np.uint64]  # one row an instruction, its two halves as columns

_BYTES = 16
_FEW = 4096  # instructions that are not worth another process
_ATTEMPTS = 8  # it names only so many unknown instructions that are kept of its complaints
_LINE = re.compile(rb"\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)", re.IGNORECASE)
_UNKNOWN = re.compile(r"at address 0x([0-9a-f]+)")


def count_opcodes(
    tool: Path, architecture: str, functions: Sequence[bytes], seconds: float
) -> list[Counter[str] | None]:
    """How often each opcode stands in each function; None for one with what is no instruction."""
    whole = [code for code in functions if code and len(code) % _BYTES == 0]
    if not whole:
        return [None] * len(functions)
    words = pd.DataFrame(np.frombuffer(b"".join(whole), np.uint64).reshape(-1, 2))
    number = words.groupby([0, 1], sort=False).ngroup().to_numpy()
    distinct = words.drop_duplicates().to_numpy()
    names = _opcodes(tool, architecture, distinct, time.monotonic() + seconds)
    code_of, opcodes = pd.factorize(np.array(names, object), use_na_sentinel=True)
    counters: list[Counter[str] | None] = []
    at = 0
    for code in functions:
        length = len(code) // _BYTES if code and len(code) % _BYTES == 0 else 0
        code_opcodes = code_of[number[at : at + length]]
        at += length
        if not length or (code_opcodes < 0).any():
            counters.append(None)
            continue
        counts = np.bincount(code_opcodes, minlength=len(opcodes))
        counters.append(Counter({str(opcodes[i]): int(counts[i]) for i in np.flatnonzero(counts)}))
    return counters


def _opcodes(tool: Path, architecture: str, words: Instructions, until: float) -> list[str | None]:
    """The opcode of each instruction; None for what is none."""
    parts = min(cores(), -(-len(words) // _FEW))
    with ThreadPoolExecutor(parts) as pool:
        split = np.array_split(words, parts)
        opcodes = pool.map(lambda part: _part(tool, architecture, part, until), split)
        return [name for names in opcodes for name in names]


def _part(tool: Path, architecture: str, words: Instructions, until: float) -> list[str | None]:
    names: list[str | None] = [None] * len(words)
    places = np.arange(len(words))

    def note(line: bytes) -> None:
        match = _LINE.match(line)
        if match and (index := int(match[1], 16) // _BYTES) < len(places):
            names[places[index]] = match[2].decode()

    with temporary_folder() as folder:
        file = folder / "instructions.bin"
        for attempt in range(1, _ATTEMPTS + 1):
            file.write_bytes(words[places].tobytes())
            try:
                option = architecture.replace("sm_", "SM")
                run_tool([tool, "--binary", option, file], until - time.monotonic(), note)
                break
            except ToolError as error:
                bad = [int(address, 16) // _BYTES for address in _UNKNOWN.findall(error.stderr)]
                if attempt == _ATTEMPTS or not bad:
                    raise
                places = np.delete(places, [index for index in bad if index < len(places)])
                if not len(places):
                    break
    return names
