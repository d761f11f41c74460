"""Draws one section of the HTML report: its sentences, its figure and its table or list.

On a phone a table with names or sentences in it is drawn as a list of records, by the style sheet
alone: each cell carries the title of its column.
"""

from __future__ import annotations

from html import escape

from spark_prof.dashboards.formats import shorten
from spark_prof.dashboards.section import Cell, Column, Section, without_bars

_NAME_WIDTH = 72
_LONGEST_NAME = 2000
_MANY = 8
"""Columns; a table with more is drawn smaller."""


def draw_section(section: Section, figure: str = "") -> str:
    """Draws a section, with a figure above its table if there is one."""
    intro = f"<p>{escape(' '.join(section.intro))}</p>\n" if section.intro else ""
    body = _list(section) if len(section.columns) == 1 else _table(section)
    return (
        f'<section id="{escape(section.id)}">\n<h2>{escape(section.title)}</h2>\n'
        f"{intro}{figure}{body}</section>\n"
    )


def _list(section: Section) -> str:
    items = "".join(f"<li>{escape(str(row[0]))}</li>\n" for row in section.rows)
    return f"<ul>\n{items}</ul>\n"


def _table(section: Section) -> str:
    section = without_bars(section)
    columns = section.columns
    head = "".join(
        f'<th scope="col" class="{column.kind}">{escape(column.title)}</th>' for column in columns
    )
    titled = any(column.title for column in columns)
    records = len(columns) > 2 and any(column.kind in ("name", "prose") for column in columns)
    classes = " ".join(filter(None, ("records" * records, "broad" * (len(columns) > _MANY))))
    rows = "".join(
        f"<tr>{''.join(_cell(*pair, titled=records) for pair in zip(row, columns, strict=True))}"
        "</tr>\n"
        for row in section.rows
    )
    return (
        # What scrolls has to be reachable by keyboard.
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(section.title)}">'
        + (f'<table class="{classes}">\n' if classes else "<table>\n")
        + (f"<thead><tr>{head}</tr></thead>\n" if titled else "")
        + f"<tbody>\n{rows}</tbody>\n</table></div>\n"
    )


def _cell(cell: Cell, column: Column, *, titled: bool) -> str:
    cell = str(cell)
    title = f' data-title="{escape(column.title)}"' if titled and column.title else ""
    start = f'<td class="{column.kind}"{title}>'
    if column.kind != "name":
        return f"{start}{escape(cell)}</td>"
    if len(cell) <= _NAME_WIDTH:
        return f"{start}<code>{escape(cell)}</code></td>"
    short = escape(shorten(cell, _NAME_WIDTH))
    return (
        f"{start}<details><summary><code>{short}</code></summary>"
        f"<code>{escape(shorten(cell, _LONGEST_NAME))}</code></details></td>"
    )
