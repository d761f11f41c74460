"""Takes GPU machine code out of shared libraries and executables, with NVIDIA's cuobjdump.

A fat binary holds the same functions for several architectures as cubins, and some as PTX only,
which the driver compiles for the GPU when it loads them. `cuobjdump -lelf` and `-lptx` list files
such as ``lib.7.sm_90a.cubin``, one a line; `-xelf` and `-xptx` write them into the current folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.traces.cuda_tools import ToolError, run_tool

_LISTED = re.compile(rb"(?:ELF|PTX) file\s+\d+: (\S+\.sm_(\d{2,4})([af]?)\.(cubin|ptx))\s*$")
_NO_CODE = ("does not contain device code", "No PTX file found", "No ELF file found")
_ENTRY = re.compile(rb"^\s*(?:\.visible |\.weak )?\s*\.entry\s+([\w$.]{1,16384})")
_LARGEST_KB = 2 << 20
"""Of a file that is taken out, in 512-byte blocks or KiB as the shell counts."""


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
    """What the library holds; empty where it has no GPU code.

    Raises:
        ToolError: cuobjdump failed or took too long.
    """
    found: list[FatFile] = []

    def note(line: bytes) -> None:
        if match := _LISTED.search(line):
            name = match[1].decode(errors="replace")
            found.append(FatFile(name, int(match[2]), match[3].decode()))

    for option in ("-lelf", "-lptx"):
        try:
            run_tool([tool, option, library.absolute()], seconds, note)
        except ToolError as error:
            if not any(words in error.said for words in _NO_CODE):
                raise
    return found


def take_out(
    tool: Path, library: Path, files: Sequence[FatFile], folder: Path, seconds: float
) -> list[Path]:
    """Writes files of the library into a folder; the paths of those that are there.

    Raises:
        ToolError: cuobjdump failed or took too long.
    """
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
            wanted = ",".join(sorted(parts))
            run_tool([*limited, option, wanted, library.absolute()], seconds, len, folder)
    there = (folder / Path(file.name).name for file in files)
    return [path for path in there if path.is_file()]


def ptx_entries(path: Path) -> list[str]:
    """The symbols of the kernels in a PTX file."""
    with path.open("rb") as lines:
        found = (_ENTRY.match(line) for line in iter(lambda: lines.readline(1 << 20), b""))
        return [match[1].decode(errors="replace") for match in found if match]
