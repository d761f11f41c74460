"""Marks when a process of the engine did what while the engine started, for a recording.

A mark is a stage of `rules.start_stages` with two times of CLOCK_MONOTONIC, which all processes of
a host share; those of a worker's phases have what the process held before and after. What a version
of vLLM does not have is not marked. Every wrap is taken off when its stage is over.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

from spark_prof.profiler.memory_state import MemoryGauge, host_memory
from spark_prof.profiler.ranges import wrap_method
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.vllm_names import (
    COMPILE_BACKEND,
    COMPILE_COUNTER,
    COMPILE_MONITOR,
    FRONT_ENDS,
    PHASE_PARTS,
    PHASES,
    START_FUNCTIONS,
)
from spark_prof.traces.chunks import META_FILE, boot_id, start_name, write_json

logger = logging.getLogger("spark_prof")

_INSPECTION = "vllm.model_executor.models.registry"  # runs as a program for a moment
_LAST_PHASE = PHASES[-1][0]
_MOST_MARKS = 1000


class StageMarks:
    """The marks of one process; a forked one begins anew."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid, self._token = os.getpid(), secrets.token_hex(4)
        self._started: int = _quietly(process_start_ns) or time.monotonic_ns()
        self._rows: list[dict[str, Any]] = []
        self._undo: list[Callable[[], None]] = []
        self._wrappers: dict[tuple[str, ...], Callable[[Any], Any]] = {}
        self._counts: dict[str, int] = {}
        self._process = "front"
        self._latest = 0  # when its imports ended, then when its front end was up
        self.gauge: MemoryGauge | None = None

    def installed(self, settings: Settings) -> None:
        """Begins in this process: what came before was importing packages."""
        self._settings = settings
        self._look_for_fork()
        if not self._rows:
            now = time.monotonic_ns()
            self._add("imports", self._started, now, after=host_memory(shares=False))
            self._latest = now

    def watch_front(self) -> None:
        """Marks when the front end of the engine is up, if this is one."""
        program = getattr(sys.modules.get("__main__"), "__spec__", None)
        if multiprocessing.parent_process() or getattr(program, "name", "") == _INSPECTION:
            return
        for module, name in FRONT_ENDS:
            with suppress(Exception):
                self._watch_front_end(getattr(importlib.import_module(module), name))
        server = getattr(sys.modules.get("uvicorn"), "Server", None)
        if server is not None:
            self._watch_server(server)

    def _watch_front_end(self, owner: Any) -> None:
        original = owner.__init__

        @wraps(original)
        def constructor(this: Any, *arguments: Any, **named: Any) -> None:
            owner.__init__ = original
            begin = time.monotonic_ns()
            original(this, *arguments, **named)
            self._add("configuration", self._latest, begin)
            self._latest = time.monotonic_ns()
            self._add("rest", begin, self._latest)
            self._write()

        owner.__init__ = constructor

    def _watch_server(self, owner: Any) -> None:
        original = owner.startup

        @wraps(original)
        async def startup(this: Any, *arguments: Any, **named: Any) -> None:
            owner.startup = original
            await original(this, *arguments, **named)
            self._add("server", self._latest, time.monotonic_ns())
            self._write()

        owner.startup = startup

    def engine_up(self, process: str) -> None:
        """Marks that the engine's core has its scheduler, and so all that it waits for."""
        self._look_for_fork()
        self._process = process if self._process == "front" else self._process
        began = self._latest or self._started
        self._add("rest", began, time.monotonic_ns())
        self._write()

    def watch_worker(self, worker: Any, process: str) -> None:
        """Marks the phases of a worker that was just constructed.

        Its wraps lie around those of the recording, so that they come off first.
        """
        self._look_for_fork()
        self._process, self.gauge = process, MemoryGauge()
        self._wrappers = {where: partial(self._marking, stage) for where, stage in START_FUNCTIONS}
        self._wrappers |= {
            COMPILE_MONITOR: self._monitor,
            COMPILE_BACKEND: partial(self._marking, "compile"),
        }
        for method, stage in PHASES:
            self._wrap(worker, method, stage)

    def release(self) -> None:
        """Takes every wrap off; those of a start that failed too."""
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def stage(self, name: str, *, memory: bool = False) -> Iterator[None]:
        """Marks what runs within."""
        read = self.gauge.read if memory and self.gauge else dict
        begin, before = time.monotonic_ns(), _quietly(read)
        try:
            yield
        finally:
            self._add(name, begin, time.monotonic_ns(), before, _quietly(read))

    def _wrap(self, owner: Any, method: str, stage: str) -> None:
        def around(original: Any, *arguments: Any, **named: Any) -> Any:
            _quietly(self._replace)
            try:
                with self.stage(stage, memory=True):
                    return original(*arguments, **named)
            finally:
                undo()
                _quietly(lambda: self._passed(owner, method))

        undo = wrap_method(owner, method, around)

    def _passed(self, owner: Any, method: str) -> None:
        """Goes on to what is there after a phase, and ends after the last one."""
        if method == PHASES[0][0]:
            # What came before it since the imports made this process a worker's.
            self._rows[-1]["begin_ns"] = self._latest or self._started
            for part, stage in PHASE_PARTS:
                self._wrap(owner.model_runner, part, stage)
        elif method == _LAST_PHASE:
            self.release()
            counter = getattr(sys.modules.get(COMPILE_COUNTER[0]), COMPILE_COUNTER[1], None)
            if is_dataclass(counter) and not isinstance(counter, type):
                self._counts = {name: count for name, count in asdict(counter).items() if count}
            self._write()

    def _replace(self) -> None:
        """Wraps the functions of the modules that have been imported since, until `release`."""
        for where in [where for where in self._wrappers if where[0] in sys.modules]:
            wrapper = self._wrappers.pop(where)
            owner: Any = sys.modules[where[0]]
            for name in where[1:-1]:
                owner = getattr(owner, name, None)
            original = getattr(owner, where[-1], None)
            if original is not None:
                setattr(owner, where[-1], wrapper(original))
                self._undo.append(partial(setattr, owner, where[-1], original))

    def _marking(self, stage: str, original: Any) -> Callable[..., Any]:
        @wraps(original)
        def marked(*arguments: Any, **named: Any) -> Any:
            with self.stage(stage):
                return original(*arguments, **named)

        return marked

    def _monitor(self, original: Any) -> Callable[..., Any]:
        """Around torch.compile: what the compiler's counter grows by tells what it was."""

        @contextmanager
        @wraps(original)
        def monitored(*arguments: Any, **named: Any) -> Iterator[None]:
            before, begin = _compiled(), time.monotonic_ns()
            try:
                with original(*arguments, **named):
                    yield
            finally:
                now = _compiled()
                loaded, compiled = now[0] > before[0], now[1] > before[1]
                # Without ahead-of-time compilation the first run is in it.
                stage = "trace" if compiled else "compile-and-profile"
                self._add("compiled-before" if loaded else stage, begin, time.monotonic_ns())

        return monitored

    def _look_for_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin_anew()

    def _add(
        self,
        stage: str,
        begin: int,
        end: int,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        if len(self._rows) < _MOST_MARKS:
            row = {"stage": stage, "begin_ns": begin, "end_ns": end}
            self._rows.append(row | ({"before": before} if before else {})
                              | ({"after": after} if after else {}))  # fmt: skip

    def _write(self) -> None:
        """Writes the marks where a recording waits for them, and no bundle has been made."""
        settings = self._settings
        if settings is None or not settings.pieces.is_dir():
            return
        if (settings.folder / META_FILE).exists():
            return
        value = {
            "process": self._process, "pid": self._pid, "run": settings.run,
            "boot": boot_id(), "started_ns": self._started,
            "marks": self._rows, "compiled": self._counts, "memory": _quietly(host_memory),
        }  # fmt: skip
        with suppress(Exception):
            write_json(settings.pieces, start_name(self._token), value)


def process_start_ns() -> int:
    """When this process started, by CLOCK_MONOTONIC, to a hundredth of a second."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    started = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")  # since boot, as proc(5) has it
    age = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started
    return time.monotonic_ns() - age


def _compiled() -> tuple[int, int]:
    """How often a whole compiled model was read from the cache so far, and how often made."""
    counter = getattr(sys.modules.get(COMPILE_COUNTER[0]), COMPILE_COUNTER[1], None)
    names = ("num_aot_artifacts_loaded", "num_aot_compiles")
    loaded, compiled = (int(getattr(counter, name, 0)) for name in names)
    return loaded, compiled


def _quietly(function: Callable[[], Any]) -> Any:
    """What a function returns; None where it fails, which is no reason to disturb a start."""
    try:
        return function()
    except Exception as error:
        logger.debug("spark-prof cannot mark the start: %s", error)
        return None


MARKS = StageMarks()
"""Those of this process."""
