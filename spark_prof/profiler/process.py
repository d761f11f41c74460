"""One recorded process: its name, and everything that it writes into the bundle's pieces."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spark_prof.profiler.settings import Settings
from spark_prof.profiler.targets import MarkedModule
from spark_prof.profiler.window import Window
from spark_prof.traces.pieces import (
    append_log,
    facts_name,
    pieces_folder,
    progress_name,
    write_array,
    write_json,
)

__all__ = ["Process"]


class Process:
    """Writes the pieces of one process, such as ``rank0`` or ``engine0``."""

    def __init__(self, settings: Settings, name: str, rank: int) -> None:
        self.name = name
        self.rank = rank
        self.folder = pieces_folder(settings.folder)
        self._run = settings.run
        self.thread = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        self._shown: tuple[str, int] | None = None

    def use_current_thread(self) -> None:
        """Says that the steps run in the current thread."""
        self.thread = threading.get_native_id()

    def write(self, name: str, rows: np.ndarray[Any, Any]) -> None:
        """Writes one array of a piece."""
        write_array(self.folder, name, rows)

    def write_facts(
        self,
        facts: dict[str, Any],
        modules: Sequence[MarkedModule] = (),
        layers: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Writes what this process is: versions, model, GPU, and its modules and layers."""
        identity = {
            "process": self.name,
            "rank": self.rank,
            "pid": os.getpid(),
            "run": self._run,
            "host": socket.gethostname(),
            "boot": _boot(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "time_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
        }
        rows = [
            {"path": m.path, "type": m.type, "layer": m.layer, "component": m.component}
            for m in modules
        ]
        value = identity | facts | {"modules": rows, "layers": list(layers)}
        write_json(self.folder, facts_name(self.name), value)

    def progress(self, window: Window, *, finished: bool = False) -> None:
        """Writes how far the recording is, where that has changed."""
        shown = (window.state.name, window.recorded)
        if shown == self._shown and not finished:
            return
        self._shown = shown
        counts = {"passed": window.passed, "recorded": window.recorded, "closed": window.closed}
        value = counts | {"state": window.state.name, "finished": finished, "pid": os.getpid()}
        write_json(self.folder, progress_name(self.name), value)

    def finished(self) -> None:
        """Writes that this process has nothing more to add."""
        write_json(self.folder, progress_name(self.name), {"finished": True, "pid": os.getpid()})

    def log(self, message: str) -> None:
        """Adds one line to the bundle's log."""
        append_log(self.folder, self.name, time.time_ns(), message)


def _boot() -> str:
    """The current boot of this machine, the same in all its containers; empty where unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
