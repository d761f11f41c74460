"""Turns the symbol of a C++ function into the name that people read.

What a symbol has once it can refer to again, and what is made of references to references doubles
with each: a few hundred letters can mean gigabytes. So a child process asks libstdc++, with bounds
on its memory and on the time that each symbol takes; one that breaks a bound stays as it is.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

_LONGEST = 4096
"""Longer symbols stay as they are: a demangler goes as deep as its symbol wants."""

_LONGEST_NAME = 16_384
"""Symbols whose names are longer stay as they are."""

_CPU_SECONDS = 0.02
"""A thousand times what a symbol of PyTorch takes."""

_PATIENCE_SECONDS = 10.0
"""How long an answer may take where other processes have the cores."""

_MOST_MEMORY = 256 << 20
"""Address space of the child, most of which Python's libraries take without using it."""

_MOST_SECONDS = 20.0
"""Spent on symbols that have no name within bounds; then all others stay as they are."""


def demangler() -> Callable[[str], str]:
    """What gives each symbol's name; what is none stays, and all stay where C++ is absent."""
    child = _Child()

    def demangle(symbol: str) -> str:
        if not symbol.startswith("_Z") or len(symbol) > _LONGEST or not symbol.isascii():
            return symbol
        if not symbol.isprintable():
            return symbol
        return child.ask(symbol) or symbol

    return demangle


class _Child:
    """The process that is asked; it starts with the first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._spent = 0.0
        self._known: dict[str, str] = {}

    def ask(self, symbol: str) -> str:
        """The symbol's name; empty if it has none within bounds."""
        if symbol not in self._known:
            self._known[symbol] = self._asked(symbol)
        return self._known[symbol]

    def _asked(self, symbol: str) -> str:
        if self._spent >= _MOST_SECONDS:
            return ""
        began = time.monotonic()
        answer = None
        with suppress(OSError):
            process = self._started()
            assert process.stdin is not None
            process.stdin.write(symbol.encode() + b"\n")
            process.stdin.flush()
            answer = _line(process)
        if not answer:
            self._spent += time.monotonic() - began
        if answer is None and self._process is not None:
            _end(self._process)
            self._process = None
        return answer or ""

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._spent += _CPU_SECONDS  # one that never answers is not started for ever
            # Isolated and without site-packages: it needs nothing of them, and starts at once.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            weakref.finalize(self, _end, self._process)
        return self._process


def _line(process: subprocess.Popen[bytes]) -> str | None:
    """The child's next line; None if it ends or hangs before."""
    assert process.stdout is not None
    found = b""
    until = time.monotonic() + _PATIENCE_SECONDS
    while not found.endswith(b"\n"):
        if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        block = process.stdout.read1(_LONGEST_NAME + 1)  # type: ignore[attr-defined]
        if not block:
            return None
        found += block
    return found[:-1].decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()


def _serve() -> None:
    """Answers each line of stdin with one: the symbol's name, or nothing.

    A symbol that breaks a bound ends a process that was forked for it and those that follow.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL("libstdc++.so.6")
    function, release = library.__cxa_demangle, ctypes.CDLL(None).free
    function.restype = ctypes.c_void_p
    release.argtypes = [ctypes.c_void_p]
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    while worker := os.fork():
        if os.waitpid(worker, 0)[1] == 0:
            return
        os.write(1, b"\n")
    while symbol := sys.stdin.buffer.readline():
        # Nothing handles its signal: it ends the process wherever that is.
        signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_SECONDS)
        found = function(symbol[:-1], None, None, ctypes.byref(ctypes.c_int()))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        name = ctypes.string_at(found) if found else b""
        release(found)
        answer = name if len(name) <= _LONGEST_NAME and b"\n" not in name else b""
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
