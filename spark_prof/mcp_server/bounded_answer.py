"""What a tool answers, as JSON text of less than 8 kB: strings cleaned, rows paged, losses told.

Everything of a recording stands under `data`; what stands beside it is written here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spark_prof.dashboards.units import shorten
from spark_prof.errors import CommandError

MOST_BYTES = 8_000
_LONGEST = (600, 160, 60, 20)  # of a string, until it fits
_MOST_ENTRIES = 40  # of a list or mapping inside a row
_OF_HEAD = 5_500  # bytes that leave room for rows
_OF_NEXT = 1_500  # bytes of the next call
_SMALL = (500, 250, 120, 60, 0)  # bytes up to which a part is shown within another, until all fits


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool of this server."""

    tool: str
    arguments: dict[str, Any]
    why: str


@dataclass(frozen=True)
class ToolAnswer:
    """What a tool found."""

    data: Mapping[str, Any]
    next: ToolCall
    rows: Sequence[Any] | None = None  # from `first` on, at most a page of them; None for none
    first: int = 0
    total: int | None = None  # of all rows; None where more may follow than anybody counted
    has_more: bool = False  # whether rows follow that are not in `rows`
    left_out: str = ""


def answer_text(answer: ToolAnswer) -> str:
    """The answer as JSON; what does not fit is told, and `next_cursor` goes on behind it."""
    call = asdict(answer.next)
    if _size(call) > _OF_NEXT:
        call = asdict(ToolCall("recordings", {}, "the call that follows is too long to be written"))
    whole = MOST_BYTES - 500 - _size(call) - _size(answer.left_out)
    head, lost = _fitted(answer.data, _OF_HEAD if answer.rows is not None else whole)
    record: dict[str, Any] = {"data": head}
    omissions = [text for text in (answer.left_out, lost) if text]
    rows: list[Any] = []
    if answer.rows is not None:
        head["rows"] = rows
        room = MOST_BYTES - 300 - _size(record) - _size(call) - _size(omissions)
        for row in answer.rows:
            fitted, lost = _fitted(row, min(room, MOST_BYTES // 2) if not rows else room)
            if lost and rows:
                break
            omissions += [lost] if lost else []
            room -= _size(fitted) + 1
            rows.append(fitted)
        behind = answer.first + len(rows)
        if answer.has_more or len(rows) < len(answer.rows):
            of = "" if answer.total is None else f" of {answer.total}"
            omissions.append(f"rows from {behind} on{of}: call again with cursor {behind}")
            record["next_cursor"] = behind
    if omissions:
        record["left_out"] = omissions
    return _text(record | {"next": call})


def page_of(rows: Sequence[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an answer with the rows that a call's `cursor` and `limit` ask for."""
    first, limit = arguments.get("cursor", 0), arguments.get("limit", 50)
    has_more = len(rows) > first + limit
    page = rows[first : first + limit]
    return {"rows": page, "first": first, "total": len(rows), "has_more": has_more}


def part_of(record: Any, path: str) -> tuple[dict[str, Any], list[Any] | None]:
    """A part of a record by its path, such as `roofline.phases.0.rows`: its data, and its rows.

    What is large within it is replaced by the path under which it can be asked for.
    """
    part, names = record, [name for name in path.split(".") if name]
    for name in names:
        if isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        elif isinstance(part, dict) and name in part:
            part = part[name]
        else:
            choices = ", ".join(part) if isinstance(part, dict) else "numbers from 0"
            raise CommandError(f"no part {name!r:.60} in {path!r:.200}; there is {choices}")
    at = ".".join(names)
    if isinstance(part, list):
        return {"part": at}, [_brief(row, f"{at}.{n}", _SMALL[0]) for n, row in enumerate(part)]
    if not isinstance(part, dict):
        return {"part": at, "value": part}, None
    parts: dict[str, Any] = {}
    for small in _SMALL:
        parts = {n: _brief(entry, f"{at}.{n}".lstrip("."), small) for n, entry in part.items()}
        if _size(_cleaned(parts, _LONGEST[1])) <= _OF_HEAD:  # a path that is cut leads nowhere
            break
    return {"part": at} | parts, None


def _brief(value: Any, at: str, small: int) -> Any:
    if _size(value) <= small:
        return value
    if isinstance(value, dict):
        return {name: _brief(entry, f"{at}.{name}", small) for name, entry in value.items()}
    return f"{len(value)} entries: part {at}" if isinstance(value, list) else value


def _fitted(value: Any, room: int) -> tuple[Any, str]:
    """The value cleaned, as long as may be; and what had to go, empty where nothing had to."""
    for longest in _LONGEST:
        candidate = _cleaned(value, longest)
        if _size(candidate) <= room:
            return candidate, "" if longest == _LONGEST[0] else f"texts beyond {longest} characters"
    return {} if isinstance(value, Mapping) else None, "an entry too large for an answer"


def _cleaned(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return shorten(value, longest)
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        entries = list(value.items())[:_MOST_ENTRIES]
        return {shorten(str(name), longest): _cleaned(entry, longest) for name, entry in entries}
    if isinstance(value, list | tuple):
        items = [_cleaned(entry, longest) for entry in value[:_MOST_ENTRIES]]
        left = len(value) - _MOST_ENTRIES
        return [*items, f"and {left} more"] if left > 0 else items
    return value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(value: Any) -> int:
    return len(_text(value).encode("utf-8", "replace"))
