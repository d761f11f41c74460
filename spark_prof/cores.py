"""How many cores there are to work on."""

from __future__ import annotations

import os

_MOST = 8  # more would wait for memory


def cores() -> int:
    """The cores that this process may use, where the system tells, else all; at most 8."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _MOST)
    return min(os.cpu_count() or 1, _MOST)
