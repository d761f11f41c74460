"""One recorded process: its name, its pauses, and all that it writes into the bundle's pieces."""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_prof.profiler.alive import RecorderWatch
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.targets import MarkedModule
from spark_prof.profiler.window import StepWindow
from spark_prof.traces.chunks import (
    LATER_ENGINE,
    LATER_ENGINE_FILE,
    META_FILE,
    RECORDING_FILE,
    StepCounter,
    append_log,
    boot_id,
    facts_name,
    pid_namespace,
    pieces_folder,
    progress_name,
    read_counts,
    tensors_name,
    write_array,
    write_json,
)


@dataclass
class PauseLog:
    """The pauses of one worker, in ns. What is written while no request waits is none.

    Example:
        >>> pauses = Pauses()
        >>> with pauses.measured():
        ...     pass
        >>> pauses.end() >= 0, pauses.count
        (True, 1)
    """

    count: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    _since_ns: int = 0  # since the last step

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Adds what is done inside to the pause before the next step."""
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self._since_ns += time.perf_counter_ns() - begin

    def end(self) -> int:
        """Ends the pause, as the next step begins; how long it was, 0 where there was none."""
        pause, self._since_ns = self._since_ns, 0
        if pause:
            self.count += 1
            self.total_ns += pause
            self.longest_ns = max(self.longest_ns, pause)
        return pause

    def forget(self) -> None:
        """Drops what was measured since the last step: nobody waited for it."""
        self._since_ns = 0

    def figures(self) -> dict[str, int]:
        """The numbers, as they stand in a process's progress and in the facts of its rank."""
        return {
            "count": self.count, "total_ns": self.total_ns, "longest_ns": self.longest_ns,
        }  # fmt: skip


logger = logging.getLogger("spark_prof")


class Process:
    """Writes the pieces of one process, such as ``rank0`` or ``engine0``."""

    def __init__(self, settings: Settings, name: str, rank: int) -> None:
        self.name = name
        self.rank = rank
        self.folder = pieces_folder(settings.folder)
        self._run = settings.run
        self._refused = False
        self.counter = StepCounter()
        self.pauses = PauseLog()
        self._latest: tuple[str, int] | None = None
        # The bundle is made, and its command goes on to another engine.
        self._late = (settings.folder / META_FILE).exists()
        if not self._late:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.recorder = RecorderWatch(self.folder)

    def begin(self) -> bool:
        """Begins to count steps in a file; False where another process of this name does or did.

        Raises:
            OSError: the file system cannot map a file; the steps are then counted in memory.
        """
        if not self._late:
            self.check()
            try:
                self.counter.open(self.folder, self.name, self._run)
            except FileExistsError:
                pass
            else:
                return True
        self._refused = True
        before = read_counts(self.folder).get(self.name)
        if before is not None and before.run != self._run:
            text = f"{self.folder} has the steps of an earlier recording"
            self.log(f"{text}; process {os.getpid()} came later and is not recorded")
        else:
            # Beside the pieces: they may be gone by now.
            write_json(self.folder.parent, LATER_ENGINE_FILE, self._who())
            logger.warning("spark-prof: process %s is not recorded: %s", os.getpid(), LATER_ENGINE)
        return False

    def check(self) -> None:
        """Keeps this recording out of another one's folder.

        Raises:
            RuntimeError: the folder was removed, and another recording has made it again.
        """
        try:
            value = json.loads((self.folder / RECORDING_FILE).read_text(encoding="utf-8"))
            other = value["settings"]["run"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # another host than that of the recorder, or gone: writing fails by itself
        if self._run and other and other != self._run:
            raise RuntimeError(f"{self.folder.parent} belongs to another recording, {other}")

    def write(self, name: str, rows: np.ndarray[Any, Any]) -> None:
        """Writes one array of a piece."""
        self.check()
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
            "boot": boot_id(),
            "pid_namespace": pid_namespace(),
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
        self.check()
        write_json(self.folder, facts_name(self.name), value)

    def write_tensors(self, rows: Sequence[dict[str, Any]]) -> None:
        """Writes where the model's tensors lie; paths and names in it are symbols of code."""
        self.check()
        value = {"tensors": list(rows)} | self._who()
        write_json(self.folder, tensors_name(self.name), value, symbols=True)

    def progress(
        self,
        window: StepWindow,
        *,
        finished: bool = False,
        ended: str = "",
        memory: dict[str, Any] | None = None,
    ) -> None:
        """Writes how far the recording is, where that has changed.

        Args:
            ended: what ended it, unless it was asked to end.
            memory: what the process held when it ended.
        """
        latest = (window.state.name, window.recorded)
        if self._refused or (latest == self._latest and not finished):
            return
        self._latest = latest
        counts = {"passed": window.passed, "recorded": window.recorded, "closed": window.closed}
        state = {"state": window.state.name, "finished": finished, "ended": ended}
        at_end = {"memory_at_end": memory} if memory else {}
        self.tell(state | counts | {"pauses": self.pauses.figures()} | at_end)

    def tell(self, value: dict[str, Any]) -> None:
        """Writes how far this process is, such as that it has nothing more to add."""
        self.check()
        write_json(self.folder, progress_name(self.name), value | self._who())

    def _who(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "run": self._run}

    def log(self, message: str) -> None:
        """Adds one line to the bundle's log."""
        try:
            self.check()
            append_log(self.folder, self.name, time.time_ns(), message)
        except Exception:
            self.counter.miss_line()
            raise
