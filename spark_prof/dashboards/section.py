"""The records between a report's figures and the renderers: a document is a list of sections.

A section is a table of finished strings with a title and a sentence or two before it, so that
text, Markdown and HTML say the same and only differ in how they draw it. Strings are clean (see
`formats.clean`) and not escaped: escaping belongs to the renderer. Each renderer draws `cleaned`
documents, so that a section which forgot it does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spark_prof.dashboards.formats import clean

Cell = str | float
"""A finished string or, in a bar column, a fraction of 1."""


@dataclass(frozen=True)
class Column:
    """One column of a section's table."""

    title: str
    kind: Literal["text", "number", "bar", "name", "prose"] = "text"
    """What the cells are; a name may be shortened in its middle, prose may be wrapped."""
    optional: bool = False
    """May be left out where the page is narrow."""


@dataclass(frozen=True)
class Section:
    """One titled table; without rows there is nothing to say and the section is left out."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    intro: tuple[str, ...] = ()

    def only(self, kept: Sequence[int]) -> Section:
        """Leaves out every column whose index is not in `kept`."""
        return replace(
            self,
            columns=tuple(self.columns[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
        )


@dataclass(frozen=True)
class Document:
    """A whole report in reading order."""

    title: str
    headline: tuple[tuple[str, str], ...]
    """The few figures that a reader wants first: what each is called, and its value."""
    sections: tuple[Section, ...]
    caveats: tuple[str, ...] = ()
    """What does not hold, a sentence each, beside the headline."""


def without_bars(section: Section) -> Section:
    """Leaves out bar columns, which only a monospaced page needs: a share stands beside each."""
    return section.only([i for i, column in enumerate(section.columns) if column.kind != "bar"])


def cleaned(document: Document) -> Document:
    """The document with every string one printable line."""
    return Document(
        _clean(document.title),
        tuple((_clean(name), _clean(value)) for name, value in document.headline),
        tuple(map(_cleaned_section, document.sections)),
        tuple(map(_clean, document.caveats)),
    )


def _cleaned_section(section: Section) -> Section:
    columns = tuple(replace(column, title=_clean(column.title)) for column in section.columns)
    rows = tuple(
        tuple(_clean(cell) if isinstance(cell, str) else cell for cell in row)
        for row in section.rows
    )
    intro = tuple(map(_clean, section.intro))
    title = _clean(section.title)
    return replace(section, title=title, columns=columns, rows=rows, intro=intro)


def _clean(text: str) -> str:
    return text if text.isprintable() else clean(text)
