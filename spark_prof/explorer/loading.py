"""Imports what all pages need and the first one, once and in one thread.

Two threads that import the same modules at a time may each see half of one.
"""

from __future__ import annotations

import threading
from importlib import import_module

__all__ = ["DRAWN", "IMPORTING", "load"]

DRAWN = threading.Event()
"""Set when a page has been drawn: what others need may take its time now."""

IMPORTING = threading.RLock()
"""Held by whoever imports a page."""


def load() -> None:
    """Returns when everything for the first page has been imported."""
    with IMPORTING:
        import_module("spark_prof.explorer.app")
        import_module("spark_prof.explorer.contents").PAGES[0].load()
