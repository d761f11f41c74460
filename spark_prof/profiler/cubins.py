"""Finds machine code in the caches of JIT compilers, the second source beside the driver.

The driver hands over a cubin when it is loaded, which may have been before anybody listened.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path

from spark_prof.traces.pieces import cached_cubin_name

_MOST_FILES = 50_000


def code_caches(environment: Mapping[str, str]) -> dict[str, Path]:
    """The caches of Triton, Inductor, vLLM and FlashInfer, by their documented variables."""
    home = Path(environment.get("HOME") or "/")
    user = environment.get("XDG_CACHE_HOME")
    cache = Path(user) if user else home / ".cache"
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{environment.get('USER', 'root')}"
    flashinfer = Path(environment.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache/flashinfer"
    return {
        "triton": Path(environment.get("TRITON_CACHE_DIR") or home / ".triton/cache"),
        "inductor": Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or inductor),
        "vllm": Path(environment.get("VLLM_CACHE_ROOT") or cache / "vllm"),
        "flashinfer": flashinfer,
    }


def copy_cached(symbols: Collection[str], caches: Mapping[str, Path], folder: Path) -> int:
    """Copies the cached cubins that are named after these functions; how many were copied."""
    found = 0
    for source, cache in caches.items():
        for path in islice(_files(cache), _MOST_FILES):
            if path.suffix == ".cubin" and path.stem in symbols:
                number = zlib.crc32(str(path).encode())
                target = folder / cached_cubin_name(source, number)
                try:
                    shutil.copyfile(path, target)
                except OSError:  # gone meanwhile or not ours to read; no half of it may stay
                    target.unlink(missing_ok=True)
                else:
                    found += 1
    return found


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent) / name
