"""How long the engine stood still for the recording: while it got ready, and wrote its pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
