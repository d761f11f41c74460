"""What the host lets the recorded processes have, and what their threads use: from /proc."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_prof.profiler.py_spy_program import threads_of

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MOST_THREADS = 4096  # of one process
_CGROUP = Path("/sys/fs/cgroup")


@dataclass
class _ProcessUse:
    """One process from when it was first looked at."""

    began_ns: int
    used_ns: dict[int, int]  # by thread: what it had used by then
    python: frozenset[int]
    throttled: dict[str, float]
    read_ns: int = 0
    threads: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


class HostAccount:
    """Reads what processes and their threads used, again and again; the last reading counts."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._processes: dict[int, _ProcessUse] = {}

    def read(self, pids: Iterable[int]) -> None:
        """Looks at these processes; one that has ended stays as it was seen last."""
        for pid in pids:
            with suppress(OSError, ValueError):
                self._read(pid)

    def _read(self, pid: int) -> None:
        now, used = time.monotonic_ns(), dict(_thread_times(pid))
        process = self._processes.get(pid)
        if process is None:
            python: frozenset[int] = frozenset()
            with suppress(OSError, ValueError, subprocess.SubprocessError):
                threads = threads_of(self._program, pid)
                python = frozenset(t.os_thread_id for t in threads if t.os_thread_id)
            self._processes[pid] = _ProcessUse(now, used, python, throttling_of(pid))
            return
        process.read_ns = now
        process.threads = [
            {
                "pid": pid, "thread": thread, "name": _name_of(pid, thread),
                "python": thread in process.python or thread == pid,
                "cpu_ns": ns - process.used_ns.get(thread, 0), "wall_ns": now - process.began_ns,
            }
            for thread, ns in used.items()
        ]  # fmt: skip
        counts = throttling_of(pid)
        since = {name: value - process.throttled.get(name, 0.0) for name, value in counts.items()}
        process.figures = since | {"cpus": float(len(os.sched_getaffinity(pid)))}
        if (quota := quota_of(pid)) is not None:
            process.figures["cpu_quota"] = quota

    def value(self) -> dict[str, Any]:
        """Rows of the tables `threads` and `host_figures`, with process ids."""
        return {
            "threads": [row for process in self._processes.values() for row in process.threads],
            "figures": [
                {"pid": pid, "name": name, "value": value}
                for pid, process in self._processes.items()
                for name, value in process.figures.items()
            ],
        }


def _thread_times(pid: int) -> Iterator[tuple[int, int]]:
    """The processor time of each thread, in ns."""
    for number, path in enumerate(Path(f"/proc/{pid}/task").iterdir()):
        if number >= _MOST_THREADS:
            return
        with suppress(OSError, IndexError, ValueError):
            fields = (path / "stat").read_text(encoding="utf-8", errors="replace")
            words = fields.rpartition(")")[2].split()
            yield int(path.name), (int(words[11]) + int(words[12])) * _TICK_NS


def _name_of(pid: int, thread: int) -> str:
    with suppress(OSError):
        path = Path(f"/proc/{pid}/task/{thread}/comm")
        return path.read_text(encoding="utf-8", errors="replace").strip()[:64]
    return ""


def _groups_of(pid: int, controller: str) -> Iterator[Path]:
    """The folders of a process's control group and of those above it, the innermost first."""
    text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = _CGROUP / names if names else _CGROUP
        if not root.is_dir():
            root = _CGROUP / controller
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root) and ".." not in folder.parts:
                yield folder


def quota_of(pid: int) -> float | None:
    """How many processors the control groups let it use; None where they set no bound."""
    quotas = []
    for folder in _groups_of(pid, "cpu"):
        with suppress(OSError, ValueError):
            limit, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            if limit != "max":
                quotas.append(int(limit) / int(period))
        with suppress(OSError, ValueError):
            limit = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
            if int(limit) > 0:
                period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
                quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def throttling_of(pid: int) -> dict[str, float]:
    """Periods of its control group, in how many it was throttled, and for how long in ns."""
    units = {"nr_periods": 1, "nr_throttled": 1, "throttled_usec": 1000, "throttled_time": 1}
    names = {"nr_periods": "periods", "nr_throttled": "throttled_periods"}
    figures: dict[str, float] = {}
    for folder in _groups_of(pid, "cpu"):
        with suppress(OSError, ValueError):
            for line in (folder / "cpu.stat").read_text(encoding="ascii").splitlines():
                name, _, number = line.partition(" ")
                if name in units:
                    figure = names.get(name, "throttled_ns")
                    # A bound of any group above stops it.
                    figures[figure] = max(
                        figures.get(figure, 0.0), float(int(number) * units[name])
                    )
    return figures
