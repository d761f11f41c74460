"""Which GPU architectures a shared library was built for, suffixes included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.cuda_tools import find_tool, missing_tool
from spark_prof.traces.readers.binary_utilities import FatFile, read_fatbin, take_out
from spark_prof.traces.readers.cubin import read_code


@dataclass(frozen=True)
class LibraryCode:
    """What a library holds.

    Attributes:
        cubins: how many there are of each architecture, such as sm_90a; of the generation that was
            asked for a family build is told from a plain one.
        ptx: architectures of its PTX.
    """

    cubins: tuple[tuple[str, int], ...]
    ptx: tuple[str, ...]


def library_code(library: Path, generation: int, seconds: float) -> LibraryCode:
    """Lists the code of a library.

    Args:
        library: a shared library or executable.
        generation: 12 for compute capability 12.x; 0 for none. Its plain cubins are taken out and
            looked at, because a build for a family looks plain in a list.
        seconds: how long that may take.

    Raises:
        CommandError: cuobjdump is missing, failed or took too long.
    """
    tool = find_tool("cuobjdump")
    if tool is None:
        raise CommandError(missing_tool("cuobjdump"))
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
    return LibraryCode(tuple(sorted((+counts).items())), tuple(ptx))


def _targets(tool: Path, library: Path, files: Sequence[FatFile], seconds: float) -> Counter[str]:
    """What each of the cubins was compiled for."""
    with temporary_folder() as folder:
        found: Counter[str] = Counter()
        for path in take_out(tool, library, files, folder, seconds):
            code = next(iter(read_code(path, ())), None)
            if code is not None:
                found[code.architecture + code.suffix.replace("plain", "")] += 1
        return found
