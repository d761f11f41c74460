"""Turns the symbol of a C++ function into the name that people read.

What a symbol has once it can refer to again, and what is made of references to references doubles
with each: a few hundred letters can mean gigabytes. So a child process asks libstdc++, with bounds
on its memory and on the time that each symbol takes; one that breaks a bound stays as it is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from itertools import zip_longest

_LONGEST = 4096  # longer symbols stay as they are: a demangler goes as deep as its symbol wants

_LONGEST_NAME = 16_384  # symbols whose names are longer stay as they are

_CPU_SECONDS = 0.02  # a thousand times what a symbol of PyTorch takes

_MOST_MEMORY = 256 << 20
"""Address space of the child, most of which Python's libraries take without using it."""

_MOST_SECONDS = 20.0
"""How long the child may take; symbols that it has not come to stay as they are."""

_names: dict[str, str] = {}
"""What was asked in this process; empty for a symbol without a name within bounds."""


def demangled(symbols: Iterable[str]) -> list[str]:
    """Each symbol's name; what is none stays, and all stay where C++ is absent."""
    symbols = list(symbols)
    new = [
        symbol for symbol in dict.fromkeys(symbols)
        if symbol.startswith("_Z") and len(symbol) <= _LONGEST
        and symbol.isascii() and symbol.isprintable() and symbol not in _names
    ]  # fmt: skip
    if new:
        _names.update(zip_longest(new, _names_from_child(new)[: len(new)], fillvalue=""))
    return [_names.get(symbol) or symbol for symbol in symbols]


def _names_from_child(symbols: list[str]) -> list[str]:
    """The names that a child process gives, in order, as far as it came."""
    # Isolated and without site-packages: it needs nothing of them, and starts at once.
    command = [sys.executable, "-I", "-S", __file__]
    try:
        answer = subprocess.run(
            command, input="\n".join(symbols).encode(), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_MOST_SECONDS,
        ).stdout  # fmt: skip
    except subprocess.TimeoutExpired as error:
        answer = error.stdout or b""
    except OSError:
        return []
    return answer.decode(errors="replace").split("\n")[:-1]


def _serve() -> None:
    """Answers each line of stdin with one: the symbol's name, or nothing.

    A symbol that breaks a bound ends the process that was forked for it and those that follow.
    """
    symbols = sys.stdin.buffer.read().split(b"\n")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL("libstdc++.so.6")
    function, release = library.__cxa_demangle, ctypes.CDLL(None).free
    function.restype = ctypes.c_void_p
    release.argtypes = [ctypes.c_void_p]
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    answered = memoryview(mmap.mmap(-1, 8)).cast("q")  # shared with the forked processes
    while answered[0] < len(symbols):
        worker = os.fork()
        if worker:
            if os.waitpid(worker, 0)[1]:
                os.write(1, b"\n")
                answered[0] += 1
            continue
        for symbol in symbols[answered[0] :]:
            # Nothing handles its signal: it ends the process wherever that is.
            signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_SECONDS)
            pointer = function(symbol, None, None, ctypes.byref(ctypes.c_int()))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            name = ctypes.string_at(pointer) if pointer else b""
            release(pointer)
            os.write(1, (name if len(name) <= _LONGEST_NAME and b"\n" not in name else b"") + b"\n")
            answered[0] += 1
        os._exit(0)


if __name__ == "__main__":
    _serve()
