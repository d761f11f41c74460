"""What must hold of everything that is shown, whatever the trace held."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.render import RENDERERS
from spark_prof.exporters.perfetto import write_perfetto
from spark_prof.exporters.table_folder import Selection, write_tables
from spark_prof.traces.bundle import Bundle
from tests.fuzz.hostile import MARKED_TAG

LONGEST_LINE = 400
"""Characters of an error line or of a line of what is lost, without the paths in it."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def check_line(line: str, *places: Path) -> None:
    """An error line, or a line of what a trace lacks: one, printable, short."""
    for place in places:
        line = line.replace(str(place), "")
    assert line.isprintable(), f"control characters in {line[:300]!r}"
    assert 0 < len(line) <= LONGEST_LINE, f"{len(line)} characters: {line[:500]!r}"


def check_report(report: Report, format_name: str) -> None:
    """A report in that format holds nothing that acts: no control character, tag or NaN."""
    drawn = RENDERERS[format_name](report)
    drawn.encode()  # what is half a character cannot be printed or written
    if format_name == "json":
        json.loads(drawn, parse_constant=_no_constant)
        return
    if format_name == "html":
        page = _Tags()
        page.feed(drawn)
        assert MARKED_TAG not in page.found, "a tag of the trace is in the page"
        assert not page.handlers, f"attributes that act: {page.handlers}"
        return  # plotly.js, which stands in it, has tabs
    bad = {c for c in set(drawn) if not c.isprintable() and c != "\n"}
    assert not bad, f"control characters {bad!r} in the report"
    if format_name == "md":
        outside = re.sub(r"`[^`\n]*`", "", drawn)
        assert f"<{MARKED_TAG}" not in outside, "a tag of the trace is in the page"


def check_perfetto(bundle: Bundle) -> None:
    """The trace for Perfetto is strict JSON."""
    out = io.BytesIO()
    write_perfetto(bundle, Selection(), out)
    json.loads(out.getvalue(), parse_constant=_no_constant)


def check_csv(bundle: Bundle, folder: Path) -> None:
    """No cell of the tables is a formula to a spreadsheet, and each row has all cells."""
    folder.mkdir()
    write_tables(bundle, Selection(), folder, "csv")
    for path in folder.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = iter(csv.reader(file))
            head = next(rows)
            for row in rows:
                assert len(row) == len(head), f"{path.name}: {row!r:.200}"
                for cell in row:
                    assert not cell.startswith(_FORMULA) or _is_number(cell), f"{cell!r:.80}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} in JSON")


class _Tags(HTMLParser):
    """The tags of a page, and the attributes by which one could run a script."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.handlers: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        for name, value in attrs:
            acts = name in ("href", "src", "action") and (value or "").startswith("javascript:")
            if name.startswith("on") or acts:
                self.handlers.add(name)
