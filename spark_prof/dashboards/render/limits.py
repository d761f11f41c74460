"""Keeps what is drawn below a size: long tables end early, and say so, as do lists of JSON."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from spark_prof.dashboards.section import (
    WHOLE,
    Cell,
    Column,
    Document,
    DocumentBounds,
    Section,
    group_of,
)
from spark_prof.dashboards.units import count, shorten
from spark_prof.errors import CommandError

_MOST_ROWS = 400  # of a table; nobody reads more on a page
_SHORT_TEXT = 200  # characters of a text where not even one row of each table fits

KEYS: Mapping[str, tuple[str, ...]] = {
    "batches": ("steps",),
    "batch_sizes": ("tokens",),
    "client_runs": ("clients",),
    "clocks": ("collectives",),
    "counter_weights": ("counters",),
    "engine": ("audit",),
    "floors": ("roofline",),
    "known": ("known_issues",),
    "log": ("audit",),
    "machine": ("machine_code",),
    "other_conversions": ("conversions",),
    "recording": ("run", "gpu"),
    "slow_steps": ("collectives",),
    "streamed_weights": ("roofline",),
    "verdict": ("verdict",),
    "waterfall": ("tokens",),
}
"""The keys of JSON that hold a section which is called otherwise there."""


def keys_of(sections: Collection[str]) -> set[str]:
    """The keys of JSON that hold these sections."""
    return {key for name in sections for key in KEYS.get(name, (name,))}


def bounded(document: Document, bounds: DocumentBounds) -> Document:
    """The document with the sections that are wanted, and so many rows of each.

    Raises:
        CommandError: there is no such section.
    """
    if bounds.sections:
        groups = [group_of(section) for section in document.sections]
        _check_sections(bounds.sections, dict.fromkeys(groups))
        pairs = zip(groups, document.sections, strict=True)
        sections = tuple(section for group, section in pairs if group in bounds.sections)
        document = Document(document.title, (), sections)
    return document if bounds.limit is None else _with_rows(document, bounds.limit)


def bounded_record(record: Any, bounds: DocumentBounds) -> Any:
    """The same of what JSON has, already plain; `left_out` says how many rows of which list.

    It is `rows_left_out` where the document has a `left_out` of its own. A document that is a list
    becomes one with `rows`. With sections, what is no list or object stays too.

    Raises:
        CommandError: there is no such section.
    """
    if bounds == WHOLE:
        return record
    if isinstance(record, list):
        _check_sections(bounds.sections, ("rows", "kernels"))
        rows = record[: bounds.limit]
        return {"rows": rows, "left_out": len(record) - len(rows)}
    left_out: Counter[str] = Counter()
    if bounds.sections:
        parts = [key for key in record if isinstance(record[key], dict | list | None)]
        aliases = [alias for alias, keys in KEYS.items() if keys[0] in record]
        _check_sections(bounds.sections, [*parts, *aliases])
        chosen_keys = keys_of(bounds.sections) | {*bounds.sections}
        record = {key: record[key] for key in record if key in chosen_keys or key not in parts}
    count_key = "rows_left_out" if "left_out" in record else "left_out"
    return {**_first(record, bounds.limit, "", left_out), count_key: dict(left_out)}


def _first(value: Any, limit: int | None, path: str, left_out: Counter[str]) -> Any:
    """The value with the first rows of each list in it; lists of numbers stay whole."""
    if isinstance(value, dict):
        inner = f"{path}." if path else ""
        return {key: _first(value[key], limit, f"{inner}{key}", left_out) for key in value}
    if not isinstance(value, list):
        return value
    if limit is not None and len(value) > limit and not isinstance(value[0], int | float):
        left_out[path] += len(value) - limit
        value = value[:limit]
    return [_first(inner, limit, path, left_out) for inner in value]


def _check_sections(sections: Collection[str], names: Collection[str]) -> None:
    if unknown := [name for name in sections if name not in names]:
        raise CommandError(f"there is no section {unknown[0]}; there are {', '.join(names)}")


def shortened(document: Document, fits: Callable[[Document], bool]) -> Document:
    """The document with as many rows of its tables as fit.

    The first rows of a table are its most important ones. Where one row of each is too much, texts
    are shortened and the last sections left out.
    """
    document, whole = _with_rows(document, _MOST_ROWS), document
    if fits(document):
        return document
    longest = max((len(section.rows) for section in document.sections), default=0)
    if rows := _largest(longest, lambda rows: fits(_with_rows(whole, rows))):
        return _with_rows(whole, rows)
    short = _with_short_texts(_with_rows(whole, 1))
    number = _largest(len(short.sections), lambda number: fits(_with_sections(short, number)))
    return _with_sections(short, number)


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to the limit that fits, 0 where 1 does not."""
    return bisect_right(range(1, limit + 1), False, key=lambda number: not fits(number))


def _with_rows(document: Document, most: int) -> Document:
    def first(section: Section) -> Section:
        if len(section.rows) <= most:
            return section
        rows = f"{count(most)} of {count(len(section.rows))} rows"
        note = f"Only the first {rows}; JSON has them all."
        return replace(section, rows=section.rows[:most], intro=(*section.intro, note))

    return replace(document, sections=tuple(map(first, document.sections)))


def _with_short_texts(document: Document) -> Document:
    def text(cell: Cell) -> Cell:
        return shorten(cell, _SHORT_TEXT) if isinstance(cell, str) else cell

    def short(section: Section) -> Section:
        intro = (shorten(" ".join(section.intro), _SHORT_TEXT),) if section.intro else ()
        rows = tuple(tuple(map(text, row)) for row in section.rows)
        return replace(section, rows=rows, intro=intro)

    return replace(document, sections=tuple(map(short, document.sections)))


def _with_sections(document: Document, most: int) -> Document:
    left_out = document.sections[most:]
    if not left_out:
        return document
    rows = tuple((shorten(section.title, _SHORT_TEXT),) for section in left_out)
    note = Section("left_out", "Left out, as too long; JSON has it", (Column(""),), rows)
    return replace(document, sections=(*document.sections[:most], note))
