"""When an engine's log says that a stage of the start ended, and which memory it tells.

Times are whole seconds: vLLM writes no finer ones, and a finer one between them would seem to go
backwards. They are local and without a year, so that only their differences mean something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from spark_prof.rules.start_memory import MEMORY_LINES
from spark_prof.rules.start_stages import MILESTONES
from spark_prof.traces.readers.log_lines import LogLine

_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_VLLM = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_TEXT_STAMP = re.compile(
    rf"^\d{{4}}-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d),\d{{3}} - (?:{_LEVELS}) - "  # FlashInfer
    r"|^\[?[WEFI](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\."  # torch
)
_STAMP = re.compile(
    rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\x1b\[[0-9;]*m)* +(?:\x1b\[[0-9;]*m)*"
    rb"(\d\d-\d\d \d\d:\d\d:\d\d) (?:\x1b\[[0-9;]*m)*\["
    rb"|^\[?[WEFI](\d{4} \d\d:\d\d:\d\d)\.\d",
    re.MULTILINE,
)
_NO_TIME = "01-01 00:00:00 "
"""What stands for the time of a JSON record without one."""

_LEAP_YEAR = 2000
_MOST_MARKS = 5000
_LONGEST_MESSAGE = 1024
_BY_WORD = tuple((milestone.word, milestone) for milestone in MILESTONES)

WORDS: tuple[bytes, ...] = tuple(
    dict.fromkeys(
        word.encode()
        for word in (*(row.word for row in MILESTONES), *(row.word for row in MEMORY_LINES))
    )
)
"""One of these stands in every line that is looked at here."""


@dataclass(frozen=True)
class Mark:
    """A line that a row of `rules.start_stages` knows."""

    milestone: str  # its id
    line: int  # number in the log, from 1
    process: str  # that wrote it; empty where nothing tells
    second: int | None  # when, in seconds since a New Year; None where it has no time
    stated_seconds: float | None  # seconds that the line states


@dataclass(frozen=True)
class MemoryFigure:
    """One figure of memory that a line states."""

    name: str  # as the groups of `rules.start_memory` are called
    gib: float
    line: int
    process: str


@dataclass(frozen=True)
class StartMarks:
    """What a log tells of the starts in it."""

    marks: tuple[Mark, ...] = ()
    memory: tuple[MemoryFigure, ...] = ()
    first: int | None = None  # the time of the first line that has one
    last: int | None = None  # and of the last


class StartWatch:
    """Collects marks line by line, and the first and last time piece by piece."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._memory: list[MemoryFigure] = []
        self._first: int | None = None
        self._last_piece = b""

    @property
    def starts(self) -> StartMarks:
        """What was read so far."""
        times = [mark.second for mark in self._marks if mark.second is not None]
        last = None
        for match in _STAMP.finditer(self._last_piece):
            last = _stamp_second(match)
        first = self._first if self._first is not None else next(iter(times), None)
        last = last if last is not None else next(reversed(times), None)
        return StartMarks(tuple(self._marks), tuple(self._memory), first, last)

    def look(self, data: bytes) -> None:
        """Looks at a piece of whole lines for its first and last time."""
        match = _STAMP.search(data)
        if match is None:
            return
        if self._first is None:
            self._first = _stamp_second(match)
        self._last_piece = data

    def add(self, line: LogLine) -> None:
        """Looks at one line."""
        if len(self._marks) >= _MOST_MARKS:
            return
        body = line.body[:_LONGEST_MESSAGE].strip()
        for word, milestone in _BY_WORD:
            if word not in body or not (match := milestone.pattern.search(body)):
                continue
            groups = match.groupdict()
            stated_seconds = float(groups["seconds"]) if groups.get("seconds") else None
            if groups.get("clock"):
                stated_seconds = _clock_seconds(groups["clock"])
            second = None if milestone.bar else second_of(line)
            self._marks.append(
                Mark(milestone.id, line.number, line.process, second, stated_seconds)
            )
            break
        self._memory.extend(_figures(line, body))


def second_of(line: LogLine) -> int | None:
    """When a line was written, in seconds since a New Year; None where it does not tell."""
    if line.head.endswith("]") and _NO_TIME not in line.head:
        match = _VLLM.search(line.head)
    else:
        match = _TEXT_STAMP.search(line.text)
    if match is None:
        return None
    return _second(*(int(part) for part in match.groups() if part is not None))


def _second(month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    try:
        when = datetime(_LEAP_YEAR, month, day, hour, minute, second)
    except ValueError:
        return None
    return int((when - datetime(_LEAP_YEAR, 1, 1)).total_seconds())


def _stamp_second(match: re.Match[bytes]) -> int | None:
    digits = re.sub(rb"\D", b"", match[1] or match[2]).decode()
    return _second(*(int(digits[at : at + 2]) for at in range(0, 10, 2)))


def _clock_seconds(clock: str) -> float:
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    return float(seconds)


def _figures(line: LogLine, body: str) -> Iterator[MemoryFigure]:
    for row in MEMORY_LINES:
        if row.word in body and (match := row.pattern.search(body)):
            for name, value in match.groupdict().items():
                if value is not None:
                    yield MemoryFigure(name, float(value), line.number, line.process)
