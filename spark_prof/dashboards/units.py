"""Writes numbers and names for a reader; every renderer takes its figures from here.

Figures are written here and nowhere else, and know their value. Names come from traces that others
made, so `clean` stands between them and every page: what it returns is one line without control
characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

MISSING = "-"  # stands where a figure was not recorded or does not apply

# A sequence ends before a single quote: what shlex has quoted stays so, and can be copied.
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -&(-/]*[@-~]|\][^\x07\x1b']*(?:\x07|\x1b\\)?|[^'])", re.S
)


class WrittenFigure(str):
    """A written figure that knows its value, in the smallest unit of its kind, for sorting."""

    value: float
    unit: str  # that it ends with; empty where nobody asks for it

    def __new__(cls, text: str, value: float = math.nan, unit: str = "") -> WrittenFigure:
        """A text, cleaned as its unit may be foreign, and what it says; NaN for nothing."""
        figure = super().__new__(cls, text if text.isprintable() else clean(text))
        figure.value, figure.unit = float(value), unit
        return figure

    @property
    def number(self) -> str:
        """The text without its unit."""
        return self[: -len(self.unit) - 1] if self.unit else self


class ShortName(str):
    """A shortened name that knows the whole one, for pages that have room for it."""

    whole: str

    def __new__(cls, text: str, whole: str) -> ShortName:
        """Cleans both names: they come from a trace."""
        name = super().__new__(cls, clean(text))
        name.whole = clean(whole)
        return name


def figure(value: float | None, form: str, unit: str = "") -> str:
    """Writes a figure in one of Python's formats, with its unit behind it."""
    if value is None or not math.isfinite(value):
        return WrittenFigure(MISSING)
    return WrittenFigure(f"{value:{form}}{unit}", value)


def clean(text: str) -> str:
    """Makes a foreign string one printable line: no escape sequences, no control characters."""
    if text.isprintable():
        return " ".join(text.split())
    text = _ESCAPE_SEQUENCE.sub("", text)
    # Format characters go too: a right-to-left override would reorder the rest of the line.
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, width: int) -> str:
    """Cleans a text and leaves out its middle where it is longer than `width`.

    Kernel names differ at both ends: what they do stands first, the tile and the dtype last.
    """
    text = clean(text)
    if len(text) <= width:
        return text
    tail = max((width - 3) // 2, 0)
    head = max(width - 3 - tail, 0)
    return f"{text[:head]}...{text[len(text) - tail :]}"


def microseconds(value: float | None) -> WrittenFigure:
    """Writes a time in the unit in which it has few digits: 8.12 us, 812.4 us, 12.35 ms, 1.23 s."""
    if value is None or not math.isfinite(value):
        return WrittenFigure(MISSING)
    magnitude = abs(value)
    if magnitude == 0:
        return WrittenFigure("0 us", 0, "us")
    # Each limit is where the unit below would round up to it.
    if magnitude < 9.995:
        return WrittenFigure(f"{value:.2f} us", value, "us")
    if magnitude < 999.95:
        return WrittenFigure(f"{value:.1f} us", value, "us")
    if magnitude < 999_995:
        return WrittenFigure(f"{value / 1e3:.2f} ms", value, "ms")
    return WrittenFigure(f"{value / 1e6:,.2f} s", value, "s")


def nothing_as_missing(value: float) -> str:
    """Writes a time, and a dash for none, where most cells of a table are empty."""
    return microseconds(value or None)


def share(fraction: float | None) -> str:
    """Writes a fraction of 1 in per cent: 12.3 %."""
    if fraction is None or not math.isfinite(fraction):
        return WrittenFigure(MISSING)
    if 0 < abs(fraction) < 0.0005:
        return WrittenFigure("<0.1 %" if fraction > 0 else ">-0.1 %", fraction)
    return WrittenFigure(f"{100 * fraction:.1f} %", fraction)


def difference(value: float | None, reference: float | None) -> str:
    """Writes by how much a value is off its reference: +3.1 %."""
    if value is None or not reference or not math.isfinite(value / reference):
        return WrittenFigure(MISSING)
    return WrittenFigure(f"{100 * (value / reference - 1):+.1f} %", value / reference - 1)


def count(number: int) -> str:
    """Writes a whole number with its thousands apart: 12,345."""
    return WrittenFigure(f"{number:,}", number)


def size(number_of_bytes: float) -> str:
    """Writes bytes in binary units: 512 B, 1.50 GiB."""
    value = float(round(number_of_bytes))
    if abs(value) < 1024:
        return WrittenFigure(f"{value:.0f} B", value)
    scaled = value / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if abs(scaled) < 1023.995:
            return WrittenFigure(f"{scaled:.2f} {unit}", value)
        scaled /= 1024
    return WrittenFigure(f"{scaled:,.2f} TiB", value)


def decimal_size(number_of_bytes: float) -> str:
    """Writes bytes in units of 1000, as bandwidths are given: 512 B, 26.5 MB, 1.904 GB."""
    for unit, value, digits in (("GB", 1e9, 3), ("MB", 1e6, 1), ("kB", 1e3, 1)):
        if abs(number_of_bytes) >= 0.99995 * value:
            return WrittenFigure(f"{number_of_bytes / value:,.{digits}f} {unit}", number_of_bytes)
    return WrittenFigure(f"{number_of_bytes:.0f} B", number_of_bytes)


def rate(a_second: float) -> str:
    """Writes how many there are in a second, such as tokens: 46.2, 1,220."""
    return figure(a_second, ",.1f" if abs(a_second) < 999.95 else ",.0f")


def bandwidth(bytes_a_second: float | None) -> str:
    """Writes bytes per second in decimal units, as data sheets do: 3,350 GB/s, 16.8 GB/s."""
    if bytes_a_second is None or not math.isfinite(bytes_a_second):
        return WrittenFigure(MISSING)
    digits = 0 if bytes_a_second >= 1e11 else 1
    return WrittenFigure(f"{bytes_a_second / 1e9:,.{digits}f} GB/s", bytes_a_second)


def operations(number: float, unit: str = "") -> str:
    """Writes a number of operations: 7.27 Gop, 1.28 T."""
    scale, letter = (1e12, "T") if number >= 1e11 else (1e9, "G")
    return WrittenFigure(f"{number / scale:,.2f} {letter}{unit}", number)


def between(low: WrittenFigure, high: WrittenFigure, word: str = "to") -> str:
    """Writes from where to where, the unit once where both have the same: 1.20 to 3.40 us."""
    return f"{low.number if low.unit == high.unit else low} {word} {high}"


def counted(number: int, noun: str) -> str:
    """Writes how many there are of something: 1 step, 12 steps."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def spans(numbers: Iterable[int]) -> str:
    """Writes whole numbers as spans, also of those evenly apart: 0-3, 7 or 0-34 by 2."""
    ordered = sorted(set(numbers))
    texts = []
    while ordered:
        length, step = 1, ordered[1] - ordered[0] if len(ordered) > 1 else 1
        while length < len(ordered) and ordered[length] - ordered[length - 1] == step:
            length += 1
        # Two numbers that are not neighbours are no span yet.
        if length == 1 or (length == 2 and step > 1):
            texts.append(f"{ordered.pop(0)}")
            continue
        by = f" by {step}" if step > 1 else ""
        texts.append(f"{ordered[0]}-{ordered[length - 1]}{by}")
        del ordered[:length]
    return ", ".join(texts)
