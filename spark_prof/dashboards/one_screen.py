"""Documents that fit on one screen: the fullest of several that does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spark_prof.dashboards.render import terminal
from spark_prof.dashboards.section import COLUMNS, LINES, Document, Section
from spark_prof.dashboards.units import count


def height(document: Document, width: int = COLUMNS) -> int:
    """How many lines a document takes, with one for what follows it."""
    return len(terminal.draw(document, width).splitlines()) + 1


def fitting(documents: Iterable[Document], width: int = COLUMNS) -> Document:
    """The first of several documents that fits on one screen, else the last one.

        fitting(short(rows) for rows in (12, 8, 4))

    Args:
        width: columns of the page: a wide one shows more columns, which may take more lines.
    """
    candidates = iter(documents)
    candidate = next(candidates)
    while (
        max(height(candidate, columns) for columns in {COLUMNS, width}) > LINES
        and (shorter := next(candidates, None)) is not None
    ):
        candidate = shorter
    return candidate


def first_rows(section: Section, most: int, what: str = "more") -> Section:
    """The first rows of a section, and how many more there are."""
    left = len(section.rows) - most
    if left <= 0:
        return section
    intro = (*section.intro, f"And {count(left)} {what}: --all.")
    return replace(section, rows=section.rows[:most], intro=intro)
