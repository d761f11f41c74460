"""Follows a recording from outside: reads what the recorded processes say about themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.profiler.control import STOP_FILE
from spark_prof.profiler.window import State
from spark_prof.traces.pieces import REFUSED_FILE, facts_name, progress_name

__all__ = ["Watcher"]

_REPEAT_SECONDS = 10.0
_POLL_SECONDS = 0.1
_ENGINE_SECONDS = 5.0


@dataclass
class Watcher:
    """What is known about a recording that others make.

    Args:
        pieces: the folder that they write into.
        steps: steps that were asked for, 0 for all.
        say: shows one line to the person who waits.
    """

    pieces: Path
    steps: int
    say: Callable[[str], None]
    _said: str = ""
    _said_at: float = field(default_factory=time.monotonic)

    def refused(self) -> str | None:
        """Why nothing will come; None as long as it may."""
        value = _read(self.pieces / REFUSED_FILE)
        return str(value.get("reason")) if value else None

    def ranks(self) -> list[dict[str, Any]]:
        """The progress of every rank that has reported."""
        found = (_read(path) for path in sorted(self.pieces.glob("rank*.progress.json")))
        return [value for value in found if value]

    def recorded(self) -> int:
        """Steps that the slowest rank has recorded."""
        return min((int(rank.get("recorded", 0)) for rank in self.ranks()), default=0)

    def full(self) -> bool:
        """Whether every rank has recorded all the steps that were asked for."""
        return 0 < self.steps <= self.recorded()

    def done(self) -> bool:
        """Whether every rank that writes here has written its last piece."""
        ranks = self.ranks()
        facts = [_read(path) for path in self.pieces.glob("rank*.facts.json")]
        sizes = [value.get("parallel", {}) for value in facts if value]
        expected = max((_product(size.values()) for size in sizes), default=1)
        if any(map(_by_ray, facts)):
            # The others may write on other hosts: those that will write here have by now.
            expected = len(facts)
        return len(ranks) >= expected and all(rank.get("finished") for rank in ranks)

    def show(self) -> None:
        """Says where the recording stands, when that changed or ten seconds have passed."""
        ranks = self.ranks()
        if not ranks:
            line = "waiting for the command to start vLLM"
        else:
            order = list(State.__members__)
            states = [rank.get("state", "") for rank in ranks]
            state = State[
                min((s for s in states if s in order), key=order.index, default="WAITING")
            ]
            line = state.value
            if state is State.RECORDING:
                line += f" step {self.recorded()}" + (f" of {self.steps}" if self.steps else "")
        now = time.monotonic()
        fresh = line.split(" step ")[0] != self._said.split(" step ")[0]
        if (
            fresh
            or (line != self._said and now - self._said_at > _REPEAT_SECONDS / 5)
            or (now - self._said_at > _REPEAT_SECONDS)
        ):
            self.say(line)
            self._said, self._said_at = line, now

    def settled(self) -> bool:
        """Whether no recorded process is left that could still write something.

        vLLM's main process may end before its workers have flushed their last piece.
        """
        names = [path.name.split(".")[0] for path in self.pieces.glob("*.facts.json")]
        for name in names:
            progress = _read(self.pieces / progress_name(name))
            pid = _read(self.pieces / facts_name(name)).get("pid")
            if not progress.get("finished") and Path(f"/proc/{pid}").exists():
                return False
        return True

    def stop(self) -> None:
        """Asks every recorded process to write what it has."""
        (self.pieces / STOP_FILE).touch()

    def wait(self, finished: Callable[[], bool], seconds: float) -> bool:
        """Waits for a condition; False when it did not come true in that time."""
        end = time.monotonic() + seconds
        while not finished():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def wait_for_engine(self) -> None:
        """Waits for the scheduler's last rows, which come up to a second after the ranks'."""
        engines = [path.name.split(".")[0] for path in self.pieces.glob("engine*.facts.json")]

        def written() -> bool:
            values = [_read(self.pieces / f"{name}.progress.json") for name in engines]
            return all(value and value.get("finished") for value in values)

        self.wait(written, _ENGINE_SECONDS)

    def check(self) -> None:
        """Raises CommandError when a recorded process has said that it cannot be recorded."""
        if reason := self.refused():
            raise CommandError(f"cannot record: {reason}")


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _by_ray(facts: dict[str, Any]) -> bool:
    """Whether Ray started that rank, perhaps beside ranks on other hosts."""
    config = facts.get("engine_config")
    parallel = config.get("parallel_config") if isinstance(config, dict) else None
    backend = parallel.get("distributed_executor_backend") if isinstance(parallel, dict) else None
    return "ray" in str(backend).lower()


def _product(values: Any) -> int:
    result = 1
    for value in values:
        result *= int(value)
    return result
