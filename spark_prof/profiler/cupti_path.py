"""The libcupti that can sample counters, and the environment in which vLLM loads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from spark_prof.rules.environment import version_of

OLDEST_CUPTI = (13, 4)
"""The first release whose libcupti is known to sample counters under a CUDA 13.0 driver."""

_LIBRARY = "libcupti.so.13"
_TOOLKITS = Path("/usr/local")


def newest_cupti(toolkits: Path = _TOOLKITS) -> Path | None:
    """The folder of the newest libcupti 13.4 or later, installed by pip or with a CUDA toolkit."""
    candidates: list[tuple[tuple[int, ...], Path]] = []
    with suppress(PackageNotFoundError):
        package = distribution("nvidia-cuda-cupti")
        files = [file for file in package.files or () if file.name == _LIBRARY]
        paths = (Path(str(package.locate_file(file))).resolve() for file in files)
        candidates += [
            (version_of(package.version), path.parent) for path in paths if path.exists()
        ]
    for folder in toolkits.glob("cuda-*/extras/CUPTI/lib64"):
        if (folder / _LIBRARY).exists():
            candidates.append((version_of(folder.parents[2].name.removeprefix("cuda-")), folder))
    new = [item for item in candidates if item[0] >= OLDEST_CUPTI]
    return max(new, default=((), None), key=lambda item: item[0])[1]


def with_cupti(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """That environment with the folder before all others where libraries are looked for.

    With such a libcupti a forked process crashes in its first call of CUDA (seen with 13.4 on an
    H100), so that vLLM is asked to start its processes anew, unless the user asked otherwise.
    """
    paths = [str(folder), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    anew = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    return anew | dict(environment) | {"LD_LIBRARY_PATH": os.pathsep.join(paths)}
