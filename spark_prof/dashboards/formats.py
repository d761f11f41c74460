"""Writes numbers and names for a reader; every renderer takes its figures from here.

Names come from traces that others made, so `clean` stands between them and every renderer that
draws for a person: what it returns is one line without control characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

MISSING = "-"
"""Stands where a figure was not recorded or does not apply."""

# A sequence ends before a single quote: what shlex has quoted stays so, and can be copied.
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -&(-/]*[@-~]|\][^\x07\x1b']*(?:\x07|\x1b\\)?|[^'])", re.S
)


def clean(text: str) -> str:
    """Makes a foreign string one printable line: no escape sequences, no control characters."""
    text = _ESCAPE_SEQUENCE.sub("", text)
    # Format characters go too: a right-to-left override would reorder the rest of the line.
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, width: int) -> str:
    """Leaves out the middle of a text that is longer than `width`.

    Kernel names differ at both ends: what they do stands first, the tile and the dtype last.
    """
    if len(text) <= width:
        return text
    tail = max((width - 3) // 2, 0)
    head = max(width - 3 - tail, 0)
    return f"{text[:head]}...{text[len(text) - tail :]}"


def microseconds(value: float | None) -> str:
    """Writes a time in the unit in which it has few digits: 8.12 us, 812.4 us, 12.35 ms, 1.23 s."""
    if value is None or not math.isfinite(value):
        return MISSING
    magnitude = abs(value)
    if magnitude == 0:
        return "0 us"
    # Each limit is where the unit below would round up to it.
    if magnitude < 9.995:
        return f"{value:.2f} us"
    if magnitude < 999.95:
        return f"{value:.1f} us"
    if magnitude < 999_995:
        return f"{value / 1e3:.2f} ms"
    return f"{value / 1e6:,.2f} s"


def nothing_as_missing(value: float) -> str:
    """Writes a time, and a dash for none, where most cells of a table are empty."""
    return microseconds(value) if value else MISSING


def share(fraction: float | None) -> str:
    """Writes a fraction of 1 in per cent: 12.3 %."""
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    if 0 < abs(fraction) < 0.0005:
        return "<0.1 %" if fraction > 0 else ">-0.1 %"
    return f"{100 * fraction:.1f} %"


def difference(value: float | None, reference: float | None) -> str:
    """Writes by how much a value is off its reference: +3.1 %."""
    if value is None or not reference or not math.isfinite(value / reference):
        return MISSING
    return f"{100 * (value / reference - 1):+.1f} %"


def count(number: int) -> str:
    """Writes a whole number with its thousands apart: 12,345."""
    return f"{number:,}"


def size(number_of_bytes: int) -> str:
    """Writes bytes in binary units: 512 B, 1.50 GiB."""
    if abs(number_of_bytes) < 1024:
        return f"{number_of_bytes} B"
    value = number_of_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if abs(value) < 1023.995:
            return f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:,.2f} TiB"


def decimal_size(number_of_bytes: float) -> str:
    """Writes bytes in units of 1000, as bandwidths are given: 512 B, 26.5 MB, 1.904 GB."""
    for unit, value, digits in (("GB", 1e9, 3), ("MB", 1e6, 1), ("kB", 1e3, 1)):
        if abs(number_of_bytes) >= 0.99995 * value:
            return f"{number_of_bytes / value:,.{digits}f} {unit}"
    return f"{number_of_bytes:.0f} B"


def rate(a_second: float) -> str:
    """Writes how many there are in a second, such as tokens: 46.2, 1,220."""
    return f"{a_second:,.1f}" if abs(a_second) < 999.95 else f"{a_second:,.0f}"


def bandwidth(bytes_a_second: float | None) -> str:
    """Writes bytes per second in decimal units, as data sheets do: 3,350 GB/s, 16.8 GB/s."""
    if bytes_a_second is None or not math.isfinite(bytes_a_second):
        return MISSING
    return f"{bytes_a_second / 1e9:,.{0 if bytes_a_second >= 1e11 else 1}f} GB/s"


def operations(number: float) -> str:
    """Writes a number of operations without its unit: 7.27 G, 1.28 T."""
    scale, letter = (1e12, "T") if number >= 1e11 else (1e9, "G")
    return f"{number / scale:,.2f} {letter}"


def counted(number: int, noun: str) -> str:
    """Writes how many there are of something: 1 step, 12 steps."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def spans(numbers: Iterable[int]) -> str:
    """Writes whole numbers as spans, also of those evenly apart: 0-3, 7 or 0-34 by 2."""
    ordered = sorted(set(numbers))
    found = []
    while ordered:
        length, step = 1, ordered[1] - ordered[0] if len(ordered) > 1 else 1
        while length < len(ordered) and ordered[length] - ordered[length - 1] == step:
            length += 1
        # Two numbers that are not neighbours are no span yet.
        if length == 1 or (length == 2 and step > 1):
            found.append(f"{ordered.pop(0)}")
            continue
        by = f" by {step}" if step > 1 else ""
        found.append(f"{ordered[0]}-{ordered[length - 1]}{by}")
        del ordered[:length]
    return ", ".join(found)
