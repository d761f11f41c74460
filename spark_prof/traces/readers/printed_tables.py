"""Reads the CSV tables that command-line tools print, with their chatter before and after.

`nsys stats --format csv` and `ncu --csv` write to a file or to the terminal, where progress lines,
the profiled program's own output and other tables stand around the one that is wanted.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import open_stream

_SEARCHED_LINES = 20_000  # lines before the table; no program that printed more has been seen
_LONGEST_LINE = 1 << 20
_LONGEST_HEAD = 1 << 17
_LATEST_NS = 1 << 62
_MOST_DIGITS = 64

_UNITS_NS = {
    ("ns", "nsec", "nsecond", "nanosecond", "nanoseconds"): 1,
    ("us", "usec", "usecond", "microsecond", "microseconds", "\u00b5s", "\u03bcs"): 10**3,
    ("ms", "msec", "msecond", "millisecond", "milliseconds"): 10**6,
    ("s", "sec", "second", "seconds"): 10**9,
}
"""How nsys (--timeunit) and Nsight Compute, old and new, write the units of time."""
_NANOSECONDS = {name: factor for names, factor in _UNITS_NS.items() for name in names}

_UNIT = re.compile(r"(?P<name>[^()]+?) ?\((?P<unit>[^()]{1,16})\)")

IsHead = Callable[[Sequence[str]], bool]
"""Says whether the cells of a line are the head of the table."""


class PrintedTable:
    """A table in a file, which may be compressed; its rows can be read more than once.

    Attributes:
        passed_over: lines inside the table that were none of its rows; known after reading.
    """

    def __init__(self, path: Path, is_head: IsHead, expected: str) -> None:
        self.path = path
        self.passed_over = 0
        self._is_head = is_head
        self.head: list[str] = next(self._lines(), [])
        if not self.head:
            raise CommandError(f"{path} holds no table that can be read; give {expected}")

    def rows(self, *columns: str) -> Iterator[list[str]]:
        """The cells of these columns, row by row; "" where there is no such column."""
        places = [self.head.index(c) if c in self.head else None for c in columns]
        least = max((place for place in places if place is not None), default=0) + 1
        self.passed_over = 0
        for cells in islice(self._lines(), 1, None):
            if not any(cells):
                return
            if len(cells) < least:
                self.passed_over += 1
                continue
            yield ["" if place is None else cells[place] for place in places]

    def bad(self, row: Sequence[str], fault: str) -> CommandError:
        """The error for a row that cannot be right."""
        text = ",".join(row)
        return CommandError(f"{self.path} has a row with {fault} ({text!r:.100}); write it again")

    def lost(self) -> list[str]:
        """What to say about lines that were passed over; after reading."""
        if not self.passed_over:
            return []
        return [f"{self.passed_over} lines in the table of {self.path.name} are no rows of it"]

    def _lines(self) -> Iterator[list[str]]:
        """The cells of the head, then of every line below it."""
        try:
            with open_stream(self.path) as blocks:
                lines = _text_lines(blocks, self.path)
                for line in islice(lines, _SEARCHED_LINES):
                    head = head_of(line)
                    if self._is_head(head):
                        yield head
                        yield from csv.reader(lines)
                        return
        except csv.Error as error:
            raise CommandError(f"{self.path} cannot be read as a table ({error})") from error


def head_of(line: str) -> list[str]:
    """The names of columns, if the line is the head of a table; none for a line too long."""
    if len(line) > _LONGEST_HEAD:
        return []
    # Line by line, because a quote in what a program says must not swallow the table.
    try:
        cells = next(csv.reader([line.strip("\ufeff \t\r\n")]), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def units_of(head: Sequence[str]) -> dict[str, tuple[str, str]]:
    """For each column's name without its unit the whole name and the unit, "" for none."""
    units: dict[str, tuple[str, str]] = {}
    for column in head:
        match = _UNIT.fullmatch(column)
        name, unit = (match["name"], match["unit"]) if match else (column, "")
        units.setdefault(name, (column, unit))
    return units


def number(text: str) -> Decimal | None:
    """The number in a cell, with commas between thousands; None for none or a huge one."""
    try:
        value = Decimal(text.replace(",", "").strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() and abs(value.adjusted()) < _MOST_DIGITS else None


def whole(text: str) -> int | None:
    """The integer in a cell, None where there is none or one beyond any table's."""
    value = number(text)
    if value is None or abs(value) > _LATEST_NS or value != value.to_integral_value():
        return None
    return int(value)


def time_ns(text: str, unit: str) -> int | None:
    """A time in ns, rounded; None where the text is no number or the unit no unit of time."""
    factor = _NANOSECONDS.get(unit.strip().lower())
    value = number(text)
    if value is None or factor is None or abs(value) > _LATEST_NS:
        return None
    nanoseconds = int((value * factor).to_integral_value())
    return nanoseconds if abs(nanoseconds) < _LATEST_NS else None


def small(text: str, most: int = 1 << 31) -> int:
    """The integer in a cell, 0 where it is negative, too large or none."""
    value = whole(text)
    return value if value is not None and 0 <= value < most else 0


@lru_cache(maxsize=4096)
def triple(text: str) -> str:
    """A grid such as "(152, 4, 1)" or " 800    1    1" as `x,y,z`, empty where it is none."""
    cells = re.split(r"[\s,]+", text.strip("() \t"))
    return ",".join(cells) if len(cells) == 3 and all(c.isdecimal() for c in cells) else ""


def _text_lines(blocks: Iterator[bytes], path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for block in blocks:
        *lines, rest = (rest + decoder.decode(block)).split("\n")
        yield from lines
        if len(rest) > _LONGEST_LINE:
            raise CommandError(f"{path} has a line that is longer than any table's")
    if rest:
        yield rest
