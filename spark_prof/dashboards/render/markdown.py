"""Draws a document as GitHub Markdown: one table a section, every name escaped.

Nothing that a trace contains can end a table's cell, open HTML, mention a person or make a link.
It always fits a post: GitHub takes 65,536 characters, Discourse by its default 32,000. Long tables
are folded; of those that are too long the first rows are drawn, with a line that says so.
"""

from __future__ import annotations

import re

from spark_prof.dashboards.render.limits import shortened
from spark_prof.dashboards.section import Cell, Column, Document, Section, without_bars
from spark_prof.dashboards.units import count, shorten

_LONGEST = 32_000
_LONGEST_NAME = 200
_MANY_ROWS = 30
_LONG_NAMES = 1500  # characters of a table from which on it is folded, if it has a column of names
_SPECIAL = re.compile(r"[\\`*{}\[\]#~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LIST_MARK = re.compile(r"^(\d*)([-+=.)])(?=\s|$)")
# A backslash before these would not do in a table, in HTML or against GitHub's links of addresses.
_ENTITIES = {
    "|": "&#124;",
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "://": "&#58;//",
    "www.": "www&#46;",
}
_ENTITY = re.compile("|".join(map(re.escape, _ENTITIES)))
# GitHub looks for people and issues in what it has drawn, where neither a backslash nor an entity
# is left: github/markup#1168, openjdk/skara#1548.
_REFERENCE = re.compile(r"(@|\\#)(?=\w)")
_NOTHING = "<!-- -->"


def draw(document: Document) -> str:
    """Draws any document as GitHub Markdown that fits a post."""
    return _drawn(shortened(document, lambda candidate: len(_drawn(candidate)) <= _LONGEST))


def _drawn(document: Document) -> str:
    lines = [f"# {escape(document.verdict or document.title)}", ""]
    if document.verdict:
        lines += [_line(document.title), ""]
    if document.headline:
        figures = (f"**{escape(value)}** {escape(name)}" for name, value in document.headline)
        lines += ["; ".join(figures), ""]
    if document.caveats:
        lines += [*(f"- {_line(caveat)}" for caveat in document.caveats), ""]
    for section in document.sections:
        if section.title:
            lines += [f"## {escape(section.title)}", ""]
        if section.intro:
            lines += [_line(" ".join(section.intro)), ""]
        lines += [*_body(section, may_fold=len(document.sections) > 1), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def escape(text: str) -> str:
    """Makes a clean string show as itself wherever Markdown stands, a table's cell included."""
    escaped = _ENTITY.sub(lambda match: _ENTITIES[match[0]], text)
    # Escaping in this order leaves the entities alone: "#" is special only outside of them.
    parts = re.split(r"(&#?\w+;)", escaped)
    parts[::2] = [_SPECIAL.sub(lambda match: f"\\{match[0]}", part) for part in parts[::2]]
    return _REFERENCE.sub(rf"\1{_NOTHING}", "".join(parts))


def _line(text: str) -> str:
    """Escapes a string that starts a line, where a dash or a number would start a list."""
    return _LIST_MARK.sub(r"\1\\\2", escape(text))


def _code(name: str) -> str:
    """Writes a name as code where it can be; code can't contain a pipe or a backtick safely."""
    name = shorten(name, _LONGEST_NAME)
    if not name or any(character in name for character in "|`\\"):
        return escape(name)
    return f"`{name}`"


def _cell(cell: Cell, column: Column) -> str:
    return _code(str(cell)) if column.kind == "name" else escape(str(cell))


def _body(section: Section, *, may_fold: bool) -> list[str]:
    if section.columns[0].kind == "command":
        # Four blanks begin code that nothing in it can end.
        return [f"    {row[0]}" for row in section.rows]
    if len(section.columns) == 1:
        return [f"- {_line(str(row[0]))}" for row in section.rows]
    section = without_bars(section)
    header = [escape(column.title) for column in section.columns]
    rule = ["---:" if column.kind == "number" else "---" for column in section.columns]
    rows = [list(map(_cell, row, section.columns)) for row in section.rows]
    table = [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
    return _folded(table, len(rows)) if may_fold and _is_long(section, table) else table


def _is_long(section: Section, table: list[str]) -> bool:
    named = any(column.kind == "name" for column in section.columns)
    return len(section.rows) > _MANY_ROWS or (named and sum(map(len, table)) > _LONG_NAMES)


def _folded(table: list[str], rows: int) -> list[str]:
    # GitHub reads Markdown in there only after an empty line.
    return [f"<details><summary>{count(rows)} rows</summary>", "", *table, "", "</details>"]
