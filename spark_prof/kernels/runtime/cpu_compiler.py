"""Makes a shared library of a kernel's source with a C++ compiler, once per source and compiler.

The libraries are kept in the user's cache. A cache that cannot be written is done without.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.runtime.code import SOURCES, KernelCode

__all__ = ["compiler", "shared_library"]

_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    # Kernels read one type's bytes as another's, and each operation of theirs rounds once.
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    # Threads leave each other's stacks by longjmp, which the checked version refuses.
    "-U_FORTIFY_SOURCE",
)
_PATIENCE_S = 300
_MOST_LIBRARIES = 500
_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)
_NO_COMPILER = (
    "no C++ compiler: kernels run on CPU tensors only with one; install g++ (Debian, Ubuntu: "
    "apt install g++), or set CXX"
)


def compiler() -> list[str] | None:
    """The C++ compiler's command: `$CXX`, else c++, g++ or clang++; None where there is none."""
    wanted = os.environ.get("CXX") or ""
    with suppress(ValueError):
        words = shlex.split(wanted)
        if words and shutil.which(words[0]):
            return words
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else None


def shared_library(code: KernelCode) -> Path:
    """The shared library of a kernel, compiled unless the cache has it.

    It exports `kernel_parameters` and `kernel_launch` (cuda/cpu_launch.h).

    Raises:
        KernelError: there is no compiler, no such source, or it does not compile.
    """
    command = compiler()
    if command is None:
        raise KernelError(_NO_COMPILER)
    wrapper = f'#include "{_path(code)}"\n#include "cpu_launch.h"\nCPU_LAUNCH({code.entry})\n'
    command += [*_FLAGS, f"-I{SOURCES}", *(f"-D{name}={value}" for name, value in code.defines)]
    kept = _folder() / f"{_digest(code, command)}.so"
    if not kept.exists():
        _compile(code, command, wrapper, kept)
    return kept


def _path(code: KernelCode) -> Path:
    path = SOURCES / code.source
    if not path.is_file():
        raise KernelError(f"{code.label}: no such source: {path}")
    return path


def _digest(code: KernelCode, command: list[str]) -> str:
    """What decides about the library: compiler, flags, source and what that includes."""
    digest = hashlib.sha256()
    digest.update(repr([platform.machine(), _version(command[0]), command, code.entry]).encode())
    ahead, seen = [_path(code), SOURCES / "cpu_launch.h"], set[Path]()
    while ahead:
        path = ahead.pop().resolve()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        text = path.read_bytes()
        digest.update(b"%d\0%s" % (len(text), text))
        for name in _INCLUDE.findall(text):
            ahead += [path.parent / os.fsdecode(name), SOURCES / os.fsdecode(name)]
    return digest.hexdigest()[:32]


@functools.cache
def _version(command: str) -> str:
    asked = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return asked.stdout


def _compile(code: KernelCode, command: list[str], wrapper: str, kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="new-") as folder:
        made = Path(folder) / "kernel.so"
        try:
            done = subprocess.run(
                [*command, "-x", "c++", "-", "-o", str(made)],
                input=wrapper,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelError(f"{code.label}: {command[0]} did not compile it: {error}") from None
        if done.returncode:
            lines = done.stderr.splitlines() or ["it says nothing"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise KernelError(f"{code.label} does not compile with {command[0]}: {first}")
        os.replace(made, kept)
    _make_room(kept.parent)


def _make_room(folder: Path) -> None:
    """Removes the libraries that were compiled first."""
    with suppress(OSError):
        libraries = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime)
        for old in libraries[:-_MOST_LIBRARIES]:
            old.unlink(missing_ok=True)


@functools.cache
def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or ""
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    folder = folder / "spark-prof" / "cpu-kernels"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    return Path(_forgotten().name)


@functools.cache
def _forgotten() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="spark-prof-")
