"""Keeps what is drawn below a size: long tables end early, and say so."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from spark_prof.dashboards.section import Cell, Column, Document, Section
from spark_prof.dashboards.units import count, shorten

_MOST_ROWS = 400  # of a table; nobody reads more on a page
_SHORT_TEXT = 200  # characters of a text where not even one row of each table fits


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
        told = f"Only the first {rows}; JSON has them all."
        return replace(section, rows=section.rows[:most], intro=(*section.intro, told))

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
    told = Section("left_out", "Left out, as too long; JSON has it", (Column(""),), rows)
    return replace(document, sections=(*document.sections[:most], told))
