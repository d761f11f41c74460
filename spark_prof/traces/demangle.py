"""Turns the symbol of a C++ function into the name that people read.

It runs inside vLLM's workers too and needs only the standard library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["demangler"]

_LONGEST = 4096
"""Longer symbols stay as they are: a demangler goes as deep as its symbol wants."""


def demangler() -> Callable[[str], str]:
    """What gives each symbol's name; what is none stays, and all stay where C++ is absent."""
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        release = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return lambda symbol: symbol
    function.restype = ctypes.c_void_p
    release.argtypes = [ctypes.c_void_p]

    def demangle(symbol: str) -> str:
        if not symbol.startswith("_Z") or len(symbol) > _LONGEST or not symbol.isascii():
            return symbol
        status = ctypes.c_int()
        found = function(symbol.encode(), None, None, ctypes.byref(status))
        if not found:
            return symbol
        try:
            return ctypes.string_at(found).decode(errors="replace")
        finally:
            release(found)

    return demangle
