"""Finds a libcupti that can sample counters, for the LD_LIBRARY_PATH of the recorded command.

torch pins libcupti 13.0, which refuses every counter. Its libraries find libcupti by RUNPATH, and
LD_LIBRARY_PATH comes before that (ld.so(8)), so a newer one is used by the whole process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

OLDEST = (13, 4)
"""The first release whose libcupti is known to sample counters under a CUDA 13.0 driver."""

_LIBRARY = "libcupti.so.13"
_TOOLKITS = Path("/usr/local")


def newest_cupti(toolkits: Path = _TOOLKITS) -> Path | None:
    """The folder of the newest libcupti 13.4 or later, installed by pip or with a CUDA toolkit."""
    found = [item for item in (*_wheel(), *_in_toolkits(toolkits)) if item[0] >= OLDEST]
    return max(found, default=((), None), key=lambda item: item[0])[1]


def with_cupti(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """That environment with the folder before all others where libraries are looked for.

    With such a libcupti a forked process crashes in its first call of CUDA (seen with 13.4 on an
    H100), so that vLLM is asked to start its processes anew, unless the user asked otherwise.
    """
    paths = [str(folder), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    anew = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    return anew | dict(environment) | {"LD_LIBRARY_PATH": os.pathsep.join(paths)}


def _wheel() -> Iterator[tuple[tuple[int, ...], Path]]:
    try:
        package = distribution("nvidia-cuda-cupti")
    except PackageNotFoundError:
        return
    for file in package.files or ():
        if file.name == _LIBRARY:
            path = Path(str(package.locate_file(file)))
            if path.exists():
                yield _numbers(package.version), path.resolve().parent


def _in_toolkits(root: Path) -> Iterator[tuple[tuple[int, ...], Path]]:
    for toolkit in root.glob("cuda-*"):
        folder = toolkit / "extras" / "CUPTI" / "lib64"
        if (folder / _LIBRARY).exists():
            yield _numbers(toolkit.name), folder


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
