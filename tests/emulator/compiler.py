"""Makes a shared library of a kernel's source with a C++ compiler, or takes a kept one."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from spark_prof.ending import temporary_folder
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.code import SOURCES, KernelCode
from spark_prof.kernels.runtime.compiled import keep_compiled, kept_compiled

HEADERS = Path(__file__).resolve().parent
_LIBRARY = "cpu_launch.h"
_FLAGS = (
    "-std=c++17",
    "-Og",
    "-fPIC",
    "-fvisibility=hidden",
    # Kernels read one type's bytes as another's, and each operation of theirs rounds once.
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    # Threads leave each other's stacks by longjmp, which the checked version refuses.
    "-U_FORTIFY_SOURCE",
    # Not the sanitizers' own libraries: cpu_checks.h has the functions that these call.
    "-fsanitize=thread",
    "-fsanitize=alignment,bounds,float-cast-overflow,integer-divide-by-zero,null,"
    "shift-exponent,signed-integer-overflow",
)
_FILLING = "-ftrivial-auto-var-init=pattern"
"""What nobody has set is not 0 by luck; GCC knows this from version 12 on."""
_PATIENCE_S = 300
_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)
_NO_COMPILER = (
    "no C++ compiler: kernels run on CPU tensors only with one; install g++ (Debian, Ubuntu: "
    "apt install g++), or set CXX"
)


def compiler() -> list[str] | None:
    """The C++ compiler's command: `$CXX`, else c++, g++ or clang++; None where there is none."""
    with suppress(ValueError):
        words = shlex.split(os.environ.get("CXX") or "")
        if words and shutil.which(words[0]):
            return words
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else None


@functools.cache
def fills_locals(command: tuple[str, ...]) -> bool:
    """Whether a compiler can fill the variables that a kernel does not set."""
    words = [*command, _FILLING, "-E", "-x", "c++", os.devnull]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def shared_library(code: KernelCode) -> bytes:
    """The shared library of a kernel, with the exports of cpu_launch.h."""
    command = compiler()
    if command is None:
        raise KernelError(_NO_COMPILER)
    source = SOURCES / code.source
    if not source.is_file():
        raise KernelError(f"{code.label}: no such source: {source}")
    flags = [*_FLAGS, *[_FILLING] * fills_locals(tuple(command))]
    flags += [
        f"-I{SOURCES}",
        f"-I{HEADERS}",
        *(f"-D{name}={value}" for name, value in code.defines),
    ]
    key = _digest(source, [platform.machine(), _version(tuple(command)), *flags, code.entry])
    library = kept_compiled(key)
    if library is None:
        wrapper = f'#include "{source}"\n#include "{_LIBRARY}"\nCPU_LAUNCH({code.entry})\n'
        library = _compile(code, command, flags, wrapper)
        keep_compiled(key, library)
    return library


def _digest(source: Path, others: Sequence[str]) -> str:
    """A name for what is compiled: the source with all that it includes, and how."""
    digest = hashlib.sha256(repr(others).encode())
    ahead, seen = [source, HEADERS / _LIBRARY], set[Path]()
    while ahead:
        path = ahead.pop().resolve()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        text = path.read_bytes()
        digest.update(b"%d\0%s" % (len(text), text))
        for name in map(os.fsdecode, _INCLUDE.findall(text)):
            ahead += [path.parent / name, SOURCES / name, HEADERS / name]
    return digest.hexdigest()


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    asked = subprocess.run([*command, "--version"], capture_output=True, check=False)
    return f"{command} {asked.stdout!r}"


def _compile(code: KernelCode, command: list[str], flags: list[str], wrapper: str) -> bytes:
    with temporary_folder() as folder:
        made, linked = str(folder / "kernel.o"), folder / "kernel.so"
        _call(code, [*command, *flags, "-c", "-x", "c++", "-", "-o", made], wrapper)
        _call(code, [*command, "-shared", made, "-o", str(linked)])
        return linked.read_bytes()


def _call(code: KernelCode, command: list[str], given: str = "") -> None:
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{code.label} does not compile: {error}") from None
    if done.returncode:
        lines = done.stderr.splitlines() or [f"{command[0]} exits with {done.returncode}"]
        reason = next((line for line in lines if "error:" in line), lines[0])
        raise KernelError(f"{code.label} does not compile for the CPU: {reason}")
