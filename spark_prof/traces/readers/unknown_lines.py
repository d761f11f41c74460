"""Warnings and errors of a log that no rule knows: counted, and shown once for all that are alike.

A warning of several lines counts once, an error with its traceback too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from spark_prof.redact import redacted_text
from spark_prof.traces.readers.log_lines import LogLine

_COUNTED = ("WARNING", "ERROR", "CRITICAL")
_VALUES = re.compile(
    r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27,}|'[^']{0,200}'|\"[^\"]{0,200}\"|\d+(?:[.,:]\d+)*", re.I
)
_PLACE = re.compile(r"\[([^\]\s]{1,100})\]")
_GOES_ON = (" ", "\t", "-", ")", "]", "}", "|")
_OPENS = (":", ": ", "(", "[", "{")
_TRACEBACK = "Traceback (most recent"
_LONGEST_TEXT = 300
_MOST_KINDS = 200


@dataclass(frozen=True)
class UnknownLine:
    """Lines that differ in numbers, names and paths at most."""

    level: str  # WARNING, ERROR or CRITICAL
    text: str  # of the first one, with the place in the source where it names one
    line: int  # number of the first one
    count: int


@dataclass
class _Record:
    """The lines that a process wrote last in one call of its logger."""

    head: str
    opened: bool  # whether more lines are to come: a traceback, or a list that was begun


class UnknownWatch:
    """Counts the warnings and errors among the lines that are given to it."""

    def __init__(self) -> None:
        self.count = 0  # of all that no rule knows, also those that are not kept
        self._kinds: dict[tuple[str, str], UnknownLine] = {}
        self._records: dict[str, _Record] = {}

    def add(self, line: LogLine, *, is_explained: bool) -> None:
        """A line, in the order of the log.

        Args:
            is_explained: whether a rule knows it, or something else tells of it.
        """
        if (
            self._goes_on(line)
            or is_explained
            or line.level not in _COUNTED
            or not line.body.strip()
        ):
            return
        self.count += 1
        place = _PLACE.match(line.text)
        words = line.body[:_LONGEST_TEXT].split(" ")
        shape = _VALUES.sub("#", " ".join("#" if "/" in word else word for word in words))
        key = (place[1].split(":")[0] if place else "", shape)
        if key in self._kinds:
            self._kinds[key] = replace(self._kinds[key], count=self._kinds[key].count + 1)
        elif len(self._kinds) < _MOST_KINDS:
            text = redacted_text(line.text[: 2 * _LONGEST_TEXT]).strip()[:_LONGEST_TEXT]
            self._kinds[key] = UnknownLine(line.level, text, line.number, 1)

    def _goes_on(self, line: LogLine) -> bool:
        """Whether the line belongs to the record before it."""
        last = self._records.get(line.process)
        if not line.head:
            return False
        if last is not None and last.head == line.head and "[" in line.head:
            if last.opened or not line.body.strip() or line.body.startswith(_GOES_ON):
                last.opened = last.opened or _TRACEBACK in line.body
                return True
            if _TRACEBACK in line.body:
                last.opened = True
                return True
        if len(self._records) < _MOST_KINDS or line.process in self._records:
            opened = line.body.rstrip().endswith(_OPENS) or _TRACEBACK in line.body
            self._records[line.process] = _Record(line.head, opened)
        return False

    @property
    def lines(self) -> tuple[UnknownLine, ...]:
        """Each kind once, in the order of the log."""
        return tuple(self._kinds.values())
