"""How busy a server was, from the status line that vLLM writes every ten seconds.

Such lines are most of a long log, so that of each large piece only some are looked at, evenly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = b"Waiting: "
_STATUS = re.compile(
    rb"Running: (\d{1,9}) reqs?, Waiting: (\d{1,9}) reqs?,(.{0,300}?)KV cache usage: "
    rb"(\d{1,3}(?:\.\d+)?)%"
)
_PREEMPTIONS = re.compile(rb"Preemptions: (\d{1,12})")
_SMALL = 1 << 18  # a piece of fewer bytes is looked at whole
_MOST = 32  # lines of a larger one
_LONGEST = 2000

FULL = 95.0  # per cent of the KV cache from which on no further request fits


@dataclass(frozen=True)
class LoggedLoad:
    """What the status lines say that were looked at."""

    lines: int  # how many were looked at
    busy: int  # of them those with a request that runs
    # Of them those with a full KV cache and requests that wait, or that were put back for it.
    full: int
    running: int  # the most requests that ran: of the full lines, where there are any
    waiting: int  # the most that waited, of the same lines
    usage: float  # per cent of the KV cache, the most
    preemptions: int  # the most that a line tells, since the line before it
    first: int  # number of the first line of the log that was looked at
    last: int


class LoadWatch:
    """Looks at the status lines of a log, piece after piece."""

    def __init__(self) -> None:
        self._first = 0  # the number of the first one
        # The piece with the last one, the number of its first line, and where that one begins.
        self._last = (b"", 0, 0)
        self._statuses = self._busy = self._full = self._preemptions = 0
        self._usage = 0.0
        self._most = (0, 0)
        self._most_full = (0, 0)

    def look(self, data: bytes, first: int) -> None:
        """Looks at whole lines, of which the first has that number."""
        step = 0 if len(data) < _SMALL else len(data) // _MOST
        at = data.find(_WORD)
        begins: list[int] = []
        while at >= 0:
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            if match := _STATUS.search(data, begin, min(end, begin + _LONGEST)):
                begins = [*begins[:1], begin]
                self._line(match)
            at = data.find(_WORD, max(end, at + step))
        if begins:
            self._first = self._first or first + data.count(b"\n", 0, begins[0])
            self._last = (data, first, begins[-1])

    def _line(self, match: re.Match[bytes]) -> None:
        running, waiting, usage = int(match[1]), int(match[2]), float(match[4])
        self._statuses += 1
        self._busy += running > 0
        self._usage = max(self._usage, usage)
        self._most = _larger(self._most, (running, waiting))
        preempted = _PREEMPTIONS.search(match[3])
        if preempted:
            self._preemptions = max(self._preemptions, int(preempted[1]))
        if (usage >= FULL and waiting > 0) or preempted:
            self._full += 1
            self._most_full = _larger(self._most_full, (running, waiting))

    @property
    def load(self) -> LoggedLoad | None:
        """What the lines said; None where there was none."""
        if not self._first:
            return None
        data, first, begin = self._last
        running, waiting = self._most_full if self._full else self._most
        return LoggedLoad(
            self._statuses, self._busy, self._full, running, waiting, self._usage,
            self._preemptions, self._first, first + data.count(b"\n", 0, begin),
        )  # fmt: skip


def _larger(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])
