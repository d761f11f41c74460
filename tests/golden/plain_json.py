"""JSON as plain text whose diff shows which figure changed, at a fifth of indented JSON's size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

_LONG = 70
_INLINE = 200
_DERIVED = "kernel_id"
"""A hash of the name beside it, which is not written."""


def plain(value: Any, long: dict[str, str], path: str = "", digits: int = 10) -> Iterator[str]:
    """Yields `path: value` lines; a list of objects is a table, a line a row, `|` between cells.

    A column that has the same value in every row stands once, above the table. A long string in a
    table is its beginning and a hash, and is added to `long` under that name. Floats have so many
    significant digits: the last ones depend on the processor.
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from plain(inner, long, f"{path}.{key}" if path else key, digits)
    elif _objects(value):
        yield from _table(value, long, path, digits)
    else:
        yield f"{path}: {_cell(value, digits)}"


def _objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(
    rows: list[dict[str, Any]], long: dict[str, str], path: str, digits: int
) -> Iterator[str]:
    keys = list(dict.fromkeys(key for row in rows for key in row if key != _DERIVED))
    columns = {
        key: [_cell(row[key], digits, long) if key in row else "" for row in rows] for key in keys
    }
    below = []
    for key, cells in columns.items():
        for place, row in enumerate(rows):
            if len(cells[place]) > _INLINE and _objects(row[key]):
                cells[place] = "below"
                below.append((row[key], f"{path}[{place}].{key}"))
    same = {key: cells[0] for key, cells in columns.items() if len(set(cells)) == 1}
    yield " ".join([f"{path}[{len(rows)}]:", *(f"{key}={cell}" for key, cell in same.items())])
    varying = {key: cells for key, cells in columns.items() if key not in same}
    if varying:
        yield "  " + " | ".join(varying)
        for cell_row in zip(*varying.values(), strict=True):
            yield "  " + " | ".join(cell_row)
    for inner, name in below:
        yield from plain(inner, long, name, digits)


def _cell(value: Any, digits: int, long: dict[str, str] | None = None) -> str:
    return json.dumps(_rounded(value, digits, long), ensure_ascii=False, separators=(",", ":"))


def _rounded(value: Any, digits: int, long: dict[str, str] | None) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, str) and long is not None and len(value) > _LONG:
        short = f"{value[:30]}~{sha256(value.encode()).hexdigest()[:6]}"
        long[short] = value
        return short
    if isinstance(value, list):
        return [_rounded(item, digits, long) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item, digits, long) for key, item in value.items()}
    return value
