"""The records between a report's figures and the renderers: a document is a list of sections.

A section is a table with a title and a sentence or two before it, so that text, Markdown and HTML
say the same and only differ in how they draw it. `table` makes one of records: a column names the
attribute that it shows, and what that is (see `cells`) says how it is written and drawn. Texts are
those of the trace, each made one printable line: renderers escape what they draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from spark_prof.analyzers.finding import TypedCommand
from spark_prof.dashboards.units import MISSING, ShortName, WrittenFigure, clean, shorten

LINES, COLUMNS = 70, 80
"""What a document of one screen may take on a terminal that has no more columns than that."""

Cell = str | float  # a `Figure` or another text or, in a bar column, a fraction of 1
Kind = Literal["text", "number", "bar", "name", "prose", "command"]


@dataclass(frozen=True)
class Column:
    """One column of a section's table."""

    title: str
    kind: Kind = "text"
    """What the cells are; a name may be shortened in its middle, prose may be wrapped. A column of
    commands is the only one of its section, so that they can be copied."""
    optional: bool = False  # may be left out where the page is narrow
    cell: Callable[[Any], Cell] = str  # makes the cell of a record


@dataclass(frozen=True)
class Section:
    """One titled table; without rows there is nothing to say and the section is left out."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    intro: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Makes every text one printable line."""
        for name, clean_ones in (
            ("title", clean(self.title)),
            ("columns", tuple(replace(c, title=clean(c.title)) for c in self.columns)),
            ("rows", tuple(tuple(map(_cleaned, row)) for row in self.rows)),
            ("intro", tuple(map(clean, self.intro))),
        ):
            object.__setattr__(self, name, clean_ones)

    def only(self, indices: Sequence[int]) -> Section:
        """Leaves out every column whose index is not in `indices`."""
        return replace(
            self,
            columns=tuple(self.columns[index] for index in indices),
            rows=tuple(tuple(row[index] for index in indices) for row in self.rows),
        )


@dataclass(frozen=True)
class Document:
    """A whole report in reading order."""

    title: str
    headline: tuple[tuple[str, str], ...]
    """The few figures that a reader wants first: what each is called, and its value."""
    sections: tuple[Section, ...]
    caveats: tuple[str, ...] = ()  # what does not hold, a sentence each, beside the headline
    verdict: str = ""  # the sentence that stands first; empty where there is none

    def __post_init__(self) -> None:
        """Makes every text one printable line; those of sections are."""
        for name, clean_ones in (
            ("title", clean(self.title)),
            ("headline", tuple((clean(name), clean(value)) for name, value in self.headline)),
            ("caveats", tuple(map(clean, self.caveats))),
            ("verdict", clean(self.verdict)),
        ):
            object.__setattr__(self, name, clean_ones)


@dataclass(frozen=True)
class DocumentBounds:
    """How much of a document is wanted."""

    limit: int | None = None  # rows of each table and list at most; None for all
    sections: tuple[str, ...] = ()  # by id, or by key of the JSON; none for all


WHOLE = DocumentBounds()
RECORDED_AS = "recorded as"
FROM_FILE = "from the file; it can run code, so read it before you type it"
_LONGEST_RECORDED = 1200


class Layout(NamedTuple):
    """How a document is drawn."""

    kind: str = "text"  # text, md, html or json
    width: int = 100  # columns of the text; below 100 tables lose their least columns
    color: bool = False
    bounds: DocumentBounds = WHOLE


def table(
    name: str,
    title: str,
    records: Iterable[Any],
    columns: Sequence[Column],
    intro: Iterable[str] = (),
    below: Iterable[tuple[Cell, ...]] = (),
) -> Section:
    """A section with a row for each record, and more rows `below` them, such as their sum.

    table("copies", "Copies", copies, [cells.Time("Time", "us")])
    """
    rows = [tuple(column.cell(record) for column in columns) for record in records]
    return Section(name, title, tuple(columns), (*rows, *below), tuple(intro))


def listed(name: str, title: str, texts: Iterable[str], longest: int = 1000) -> Section:
    """A section that is a list of sentences, each shortened to so many characters."""
    lines = filter(None, (shorten(text, longest) for text in texts))
    return Section(name, title, (Column("", "prose"),), tuple((text,) for text in lines))


def pairs(
    name: str,
    title: str,
    fields: Iterable[tuple[str, str]],
    longest: int,
    intro: Sequence[str] = (),
) -> Section:
    """A section of two columns without titles: what each field is called, and what it holds."""
    rows = ((field, shorten(value, longest)) for field, value in fields)
    columns = (Column(""), Column("", "prose"))
    return Section(name, title, columns, tuple(row for row in rows if row[1]), tuple(intro))


def commands(
    name: str,
    title: str,
    typed: Iterable[TypedCommand],
    intro: Iterable[str] = (),
    recorded: Iterable[str] = (),
) -> Section:
    """A section of commands, below the sentences that there are.

    Args:
        recorded: what a file says was typed, which is no command: it stands among the sentences,
            or in place of the commands where there are none.
    """
    rows = tuple((command,) for command in typed if command)
    recorded_lines = [f"{RECORDED_AS}: {text} ({FROM_FILE})" for text in recorded if text]
    sentences = tuple(filter(None, intro))
    if not rows:
        return replace(listed(name, title, recorded_lines, _LONGEST_RECORDED), intro=sentences)
    return Section(name, title, (Column("", "command"),), rows, (*sentences, *recorded_lines))


def document(
    title: str,
    headline: Iterable[tuple[str, str]],
    sections: Iterable[Section],
    caveats: Iterable[str] = (),
    verdict: str = "",
) -> Document:
    """A document of the sections that say something, without their empty columns."""
    filled_sections = tuple(without_empty_columns(section) for section in sections if section.rows)
    return Document(title, tuple(headline), filled_sections, tuple(caveats), verdict)


def group_of(section: Section) -> str:
    """The word with which one asks for a section: `findings` for the section findings-2."""
    return section.id.partition("-")[0]


def without_empty_columns(section: Section) -> Section:
    """Leaves out every column in which no row says anything."""
    columns = range(len(section.columns))
    nothing = ("", MISSING, 0.0)
    return section.only([i for i in columns if any(row[i] not in nothing for row in section.rows)])


def without_bars(section: Section) -> Section:
    """Leaves out bar columns, which only a monospaced page needs: a share stands beside each."""
    return section.only([i for i, column in enumerate(section.columns) if column.kind != "bar"])


def values_of(cells: Iterable[object]) -> list[float] | None:
    """The numbers of cells, NaN for an empty one; None where one is another text, or all empty."""
    values = []
    for cell in cells:
        if not isinstance(cell, WrittenFigure) and cell not in ("", MISSING):
            return None
        values.append(cell.value if isinstance(cell, WrittenFigure) else math.nan)
    return None if all(map(math.isnan, values)) else values


def _cleaned(cell: Cell) -> Cell:
    return cell if isinstance(cell, float | WrittenFigure | ShortName) else clean(str(cell))
