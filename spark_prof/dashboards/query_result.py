"""Draws the rows that a query found: for a terminal, as CSV for a spreadsheet, or as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from rich.cells import cell_len, set_cell_size

from spark_prof.dashboards.units import MISSING, count, shorten

MOST_LINES = 1_000  # rows of the text; CSV, JSON and Parquet have all of them

_WIDEST_CELL = 60
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Row = Sequence[Any]
Limit = int | None  # how many rows at most
Writer = Callable[[Sequence[str], Iterable[Row], Limit], Iterator[str]]


def as_text(columns: Sequence[str], rows: Iterable[Row], limit: Limit = None) -> Iterator[str]:
    """A table for a terminal: cells of a foreign trace can neither move its cursor nor break it."""
    waiting = iter(rows)
    most = min(limit or MOST_LINES, MOST_LINES)
    cell_rows = [[_cell(value) for value in row] for row in islice(waiting, most)]
    titles = [shorten(name, _WIDEST_CELL) for name in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(titles, *cell_rows, strict=True)]
    right = [
        bool(cell_rows) and all(_is_number(row[i]) for row in cell_rows) for i in range(len(titles))
    ]
    for line in (titles, ["─" * width for width in widths], *cell_rows):
        cells = [
            f"{' ' * (width - cell_len(cell))}{cell}" if to_right else set_cell_size(cell, width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(cells).rstrip() + "\n"
    if left := sum(1 for _ in waiting):
        yield f"{count(left)} more rows; --format csv, json or parquet has all of them\n"


def as_csv(columns: Sequence[str], rows: Iterable[Row], limit: Limit = None) -> Iterator[str]:
    """CSV; a text that a spreadsheet would take for a formula gets a ' before it."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([_safe(name) for name in columns])
    for row in islice(rows, limit):
        writer.writerow([_safe(value) for value in row])
        if buffer.tell() > 1 << 20:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def as_json(columns: Sequence[str], rows: Iterable[Row], limit: Limit = None) -> Iterator[str]:
    """A list of objects; with a limit they are `rows`, and `left_out` says how many more there are.

    What JSON has no number for is null.
    """
    waiting, last = iter(rows), "["
    if limit is not None:
        yield '{"rows": '
    for row in islice(waiting, limit):
        yield last + ("\n" if last == "[" else ",\n")
        record = {name: _plain(value) for name, value in zip(columns, row, strict=True)}
        last = json.dumps(record, default=str, allow_nan=False)
    end = "" if limit is None else f', "left_out": {sum(1 for _ in waiting)}}}'
    yield f"[]{end}\n" if last == "[" else f"{last}\n]{end}\n"


WRITERS: Mapping[str, Writer] = {"text": as_text, "csv": as_csv, "json": as_json}
"""From the name of a format to what draws it, a piece at a time."""


def _cell(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.1f}"
    return shorten(str(value), _WIDEST_CELL)


def _is_number(cell: str) -> bool:
    return cell == MISSING or cell.replace(",", "").lstrip("-")[:1].isdigit()


def _safe(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return value


def _plain(value: Any) -> Any:
    """Replaces numbers that JSON lacks, also inside lists and structures."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Decimal):
        return float(value)
    return value.hex() if isinstance(value, bytes | bytearray) else value
