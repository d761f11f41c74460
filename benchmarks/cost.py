"""What a command costs: a fresh process is timed, and its peak memory taken."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What a fresh process took: seconds, and peak memory in bytes."""

    seconds: float
    memory: int


def measure(command: list[str]) -> Cost | None:
    """What a fresh process took; None where it failed, and what it said of that is printed."""
    program = shutil.which(command[0]) or command[0]
    with tempfile.TemporaryFile() as errors:
        actions = [
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
        ]
        begin = time.perf_counter()
        pid = os.posix_spawn(program, command, os.environ, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - begin
        if status:
            errors.seek(0)
            print(errors.read().decode(errors="replace")[-1000:], end="")
            return None
    return Cost(wall, usage.ru_maxrss << 10)


def line(name: str, cost: Cost | None, baseline: Cost | None) -> None:
    """Prints one cost, and how many times spark-prof's own that is."""
    if cost is None:
        print(f"{name:24} failed")
        return
    ratio = f"{cost.seconds / baseline.seconds:7.1f} x" if baseline else ""
    print(f"{name:24} {cost.seconds:8.2f} s {cost.memory / 2**30:6.2f} GiB {ratio}", flush=True)
