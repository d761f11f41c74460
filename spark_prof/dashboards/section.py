"""The records between a report's figures and the renderers: a document is a list of sections.

A section is a table with a title and a sentence or two before it, so that text, Markdown and HTML
say the same and only differ in how they draw it. `table` makes one of records: a column names the
attribute that it shows, and what that is (`Time`, `Share`, `Bytes`, `Name`, ...) says how it is
written and drawn. Texts are those of the trace: each renderer draws `cleaned` documents, and
escapes what it draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from spark_prof.dashboards.formats import (
    MISSING,
    Figure,
    bandwidth,
    clean,
    count,
    decimal_size,
    figure,
    microseconds,
    nothing_as_missing,
    rate,
    share,
    shorten,
    size,
)

Cell = str | float
"""A `Figure` or another text or, in a bar column, a fraction of 1."""
Kind = Literal["text", "number", "bar", "name", "prose"]
Show = str | Callable[[Any], object]
"""An attribute of the record, such as `occupancy.share`, or what makes the value of the record."""


@dataclass(frozen=True)
class Column:
    """One column of a section's table."""

    title: str
    kind: Kind = "text"
    """What the cells are; a name may be shortened in its middle, prose may be wrapped."""
    optional: bool = False
    """May be left out where the page is narrow."""
    cell: Callable[[Any], Cell] = str
    """Makes the cell of a record."""


class Quantity(NamedTuple):
    """What a column's cells are: how they are written, and which kind of column that is."""

    kind: Kind
    write: Callable[[Any], Cell]

    def __call__(
        self,
        title: str,
        show: Show,
        *,
        optional: bool = False,
        missing: str | None = None,
        longest: int | None = None,
    ) -> Column:
        """A column of this quantity.

        Args:
            title: above the column.
            show: what of each record; None has no cell.
            optional: may be left out where the page is narrow.
            missing: stands for None and an empty text; a dash beside figures, nothing beside texts.
            longest: characters from which on a text is shortened in its middle.
        """
        value = _of_attribute(show) if isinstance(show, str) else show
        nothing = missing if missing is not None else MISSING if self.kind == "number" else ""

        def cell(record: Any) -> Cell:
            found = value(record)
            if found is None or found == "":
                return nothing
            if longest is not None:
                return shorten(str(found), longest) or nothing
            return self.write(found)

        return Column(title, self.kind, optional, cell)


def _as_is(value: object) -> Cell:
    return value if isinstance(value, str) else str(value)


Time = Quantity("number", microseconds)
"""Microseconds."""
SomeTime = Quantity("number", nothing_as_missing)
"""The same where most cells are empty: none has a dash."""
Share = Quantity("number", share)
"""Fractions of 1."""
Bytes = Quantity("number", size)
DecimalBytes = Quantity("number", decimal_size)
"""In units of 1000, beside bandwidths."""
Bandwidth = Quantity("number", bandwidth)
"""Bytes a second."""
Count = Quantity("number", count)
SomeCount = Quantity("number", lambda number: count(number) if number else MISSING)
Rate = Quantity("number", rate)
"""A second."""
Ratio = Quantity("number", lambda value: figure(value, ".2f"))
Times = Quantity("number", lambda value: figure(value, ".2f", " x"))
Written = Quantity("number", _as_is)
"""Figures that are written already."""
Bar = Quantity("bar", float)
"""A fraction of 1 as a bar."""
Text = Quantity("text", _as_is)
Name = Quantity("name", _as_is)
Prose = Quantity("prose", _as_is)


def _of_attribute(path: str) -> Callable[[Any], object]:
    """Reads an attribute of an attribute; None where one on the way is None."""
    first, *others = path.split(".")

    def read(record: Any) -> object:
        found = getattr(record, first)
        for name in others:
            found = None if found is None else getattr(found, name)
        return found

    return read


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

    def values(self, index: int) -> list[float] | None:
        """The numbers of a column, NaN where there is none; None where a cell is another text."""
        return values_of([row[index] for row in self.rows])


@dataclass(frozen=True)
class Document:
    """A whole report in reading order."""

    title: str
    headline: tuple[tuple[str, str], ...]
    """The few figures that a reader wants first: what each is called, and its value."""
    sections: tuple[Section, ...]
    caveats: tuple[str, ...] = ()
    """What does not hold, a sentence each, beside the headline."""


def table(
    name: str,
    title: str,
    records: Iterable[Any],
    columns: Sequence[Column],
    intro: Iterable[str] = (),
) -> Section:
    """A section with a row for each record.

        table("copies", "Copies", copies, [Time("Time", "us"), Name("Copy", "name")])

    Args:
        name: of the section in links and files.
        title: above it.
        records: what the columns show.
        columns: of `Time` and its like.
        intro: sentences before the table.
    """
    rows = tuple(tuple(column.cell(record) for column in columns) for record in records)
    return Section(name, title, tuple(columns), rows, tuple(intro))


def listed(name: str, title: str, texts: Iterable[str], longest: int = 1000) -> Section:
    """A section that is a list of sentences, each shortened to so many characters."""
    shown = filter(None, (shorten(text, longest) for text in texts))
    return Section(name, title, (Column("", "prose"),), tuple((text,) for text in shown))


def document(
    title: str, headline: Iterable[tuple[str, str]], sections: Iterable[Section]
) -> Document:
    """A document of the sections that say something, without their empty columns."""
    said = tuple(without_empty_columns(section) for section in sections if section.rows)
    return Document(title, tuple(headline), said)


def without_empty_columns(section: Section) -> Section:
    """Leaves out every column in which no row says anything."""
    return section.only(
        [
            index
            for index in range(len(section.columns))
            if any(row[index] not in ("", MISSING, 0.0) for row in section.rows)
        ]
    )


def without_bars(section: Section) -> Section:
    """Leaves out bar columns, which only a monospaced page needs: a share stands beside each."""
    return section.only([i for i, column in enumerate(section.columns) if column.kind != "bar"])


def values_of(cells: Iterable[object]) -> list[float] | None:
    """The numbers of cells, NaN for an empty one; None where one is another text, or all empty."""
    values = []
    for cell in cells:
        if not isinstance(cell, Figure) and cell not in ("", MISSING):
            return None
        values.append(cell.value if isinstance(cell, Figure) else math.nan)
    return None if all(map(math.isnan, values)) else values


def cleaned(document: Document) -> Document:
    """The document with every string one printable line."""
    return Document(
        clean(document.title),
        tuple((clean(name), clean(value)) for name, value in document.headline),
        tuple(map(cleaned_section, document.sections)),
        tuple(map(clean, document.caveats)),
    )


def cleaned_section(section: Section) -> Section:
    """The section with every string one printable line."""
    return Section(
        section.id,
        clean(section.title),
        tuple(replace(column, title=clean(column.title)) for column in section.columns),
        tuple(
            tuple(cell if isinstance(cell, float | Figure) else clean(str(cell)) for cell in row)
            for row in section.rows
        ),
        tuple(map(clean, section.intro)),
    )
