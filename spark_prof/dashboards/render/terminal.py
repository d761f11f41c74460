"""Draws a document for a terminal: text of a given width, in colour only when asked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_prof.dashboards.section import COLUMNS, LINES, Cell, Column, Document, Section
from spark_prof.dashboards.units import count, shorten

_BAR_WIDTH = 12
_GAP = 2
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TITLE = 12  # characters of a title that may be wider than what stands below it
_NAME, _SHORTEST = 12, 8  # characters that are left of a name, and where room is little of a text
_LEAST = {"prose": 24, "name": 32}
"""Widths that columns of free text keep when a table is fitted to the page."""


def draw(document: Document, width: int = 100, color: bool = False) -> str:
    """Draws a document as text that can neither move a terminal's cursor nor change its state.

    Where a table does not fit it loses its least important columns; below 60 columns lines break.
    """
    output = StringIO()
    console = Console(
        file=output,
        width=max(width, 60),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        # In a notebook Rich would show the text there instead of handing it over.
        force_jupyter=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    # Every string is a Text, because Rich would read [brackets] in names as markup.
    if document.verdict:
        console.print(Text(document.verdict, style="bold"))
    console.print(Text(document.title, style="" if document.verdict else "bold"))
    if document.headline:
        console.print(Text("; ".join(f"{value} {name}" for name, value in document.headline)))
    for caveat in document.caveats:
        console.print(Text(caveat, style="bold yellow"))
    for section in document.sections:
        if section.title:
            console.print()
            console.print(Text(section.title, style="bold cyan"))
        for sentence in section.intro:
            console.print(Text(sentence))
        if _typed(section):
            for row in section.rows:
                # A line that was broken could not be copied.
                console.print(Text(f"$ {row[0]}", style="green"), soft_wrap=True)
        else:
            console.print(_table(section, console.width))
    typed = {f"$ {row[0]}".rstrip() for s in document.sections for row in s.rows if _typed(s)}
    lines = (line.rstrip() for line in output.getvalue().splitlines())
    return "\n".join(line if line in typed else _no_command(line) for line in lines) + "\n"


def _typed(section: Section) -> bool:
    return section.columns[0].kind == "command"


def _no_command(line: str) -> str:
    """A line of anything else, which does not begin as commands do, wherever it was broken."""
    words = line.lstrip()
    return line[: len(line) - len(words)] + f"\\${words[2:]}" if words.startswith("$ ") else line


def _table(section: Section, width: int) -> Table:
    section = _fitted(section, width)
    columns = section.columns
    widths = _column_widths(section, width)
    titled = any(column.title for column in columns)
    table = Table(
        box=box.SIMPLE_HEAD if titled else None,
        show_header=titled,
        show_edge=False,
        pad_edge=False,
        # The box puts a space between columns; without one the padding does it alone.
        padding=(0, 1 if titled else 2, 0, 0),
        header_style="bold",
    )
    for column, title, most in zip(columns, _titles(section), widths, strict=True):
        table.add_column(
            Text("\n".join(title)),
            max_width=most,
            justify="right" if column.kind == "number" else "left",
            no_wrap=column.kind != "prose",
            overflow="fold" if column.kind == "prose" else "ellipsis",
        )
    for row in section.rows:
        table.add_row(*map(_cell, row, columns, widths))
    return table


def _cell(cell: Cell, column: Column, width: int | None) -> Text:
    if isinstance(cell, float):
        return Text(_bar(cell), style="green")
    return Text(_shortened(cell, width) if column.kind == "name" and width else cell)


def _shortened(name: str, width: int) -> str:
    """Leaves out the middle of a name, of whose characters some may be two columns wide."""
    characters = width
    while cell_len(short := shorten(name, characters)) > width:
        characters -= 1
    return short


def _bar(fraction: float) -> str:
    eighths = round(8 * _BAR_WIDTH * min(max(fraction, 0.0), 1.0))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip().ljust(_BAR_WIDTH)


def _widths(section: Section) -> list[int]:
    """Measures what each column would take if nothing had to be shortened."""
    return [
        max(*map(cell_len, title), *(_width(row[index]) for row in section.rows))
        for index, title in enumerate(_titles(section))
    ]


def _titles(section: Section) -> list[list[str]]:
    """The lines of each column's title: a long one is broken where its cells are narrower."""
    lines = []
    for index, column in enumerate(section.columns):
        widest = max((_width(row[index]) for row in section.rows), default=0)
        broken = [""]
        for word in re.findall(r"[^-_ .]*[-_ .]*", column.title):
            if broken[-1] and cell_len(broken[-1] + word.rstrip()) > max(widest, _TITLE):
                broken.append("")
            broken[-1] += word
        lines.append([line.rstrip() for line in broken])
    return lines


def _width(cell: Cell) -> int:
    return _BAR_WIDTH if isinstance(cell, float) else cell_len(cell)


def _fitted(section: Section, width: int) -> Section:
    """Leaves out optional columns, last first, until the others fit."""
    least = [
        min(_LEAST.get(column.kind, column_width), column_width)
        for column, column_width in zip(section.columns, _widths(section), strict=True)
    ]
    indices = list(range(len(least)))
    for index in reversed(range(len(least))):
        if sum(least[i] + _GAP for i in indices) - _GAP <= width:
            break
        if section.columns[index].optional:
            indices.remove(index)
    return section.only(indices)


def _column_widths(section: Section, width: int) -> list[int | None]:
    """What columns of names and texts may take at most; None for the others, which are not cut.

    Names get what the others leave. Where that is too little, names are cut further and then texts,
    the widest first: a figure without its unit would be read as another one.
    """
    kinds, widths = [column.kind for column in section.columns], _widths(section)
    named = [index for index, kind in enumerate(kinds) if kind == "name"]
    fixed_width = sum(size for index, size in enumerate(widths) if index not in named)
    left = (width - fixed_width - _GAP * len(widths)) // max(len(named), 1)
    for index, kind in enumerate(kinds):
        if kind == "name":
            widths[index] = min(widths[index], max(left, _NAME))
        elif kind == "prose":  # it is broken into lines
            widths[index] = min(widths[index], _LEAST["prose"])
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    for kind in ("name", "text"):
        columns = [index for index, other in enumerate(kinds) if other == kind]
        while excess > 0 and columns:
            widest = max(columns, key=widths.__getitem__)
            if widths[widest] <= _SHORTEST:
                break
            widths[widest] -= 1
            excess -= 1
    return [
        size if kind in ("name", "text") else None for kind, size in zip(kinds, widths, strict=True)
    ]


def height(document: Document, width: int = COLUMNS) -> int:
    """How many lines a document takes, with one for what follows it."""
    return len(draw(document, width).splitlines()) + 1


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


def first_rows(section: Section, most: int, noun: str = "more") -> Section:
    """The first rows of a section, and how many more there are."""
    left = len(section.rows) - most
    if left <= 0:
        return section
    intro = (*section.intro, f"And {count(left)} {noun}: --all.")
    return replace(section, rows=section.rows[:most], intro=intro)
