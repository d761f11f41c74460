"""What can be taken along: every table as CSV, every figure as PNG and as HTML."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.saved import check_page, png_size
from tests.browser.sources import report_of
from tests.browser.view import View

Explore = Callable[..., View]


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_every_table_and_figure_of_a_page(
    explore: Explore, context: BrowserContext, tmp_path: Path
) -> None:
    view = explore("layers", "nvfp4", layer=3, component="experts").unfold()
    tables, figures = view.tables(), view.figures()
    assert tables
    assert figures
    for name, table in tables.items():
        titles, *rows = rows_of(
            view.download(view.keyed(f"{name}-csv").locator("button"), tmp_path)
        )
        # A screen reader has the columns that are in sight.
        seen, *shown = view.cells(table)
        assert {title for title in seen if title.strip()} <= set(titles), name
        assert len(rows) >= len(shown), name
        places = [(n, titles.index(title)) for n, title in enumerate(seen) if title.strip()]
        for cells, row in zip(shown, rows, strict=False):
            assert_same([cells[n] for n, _ in places], [row[n] for _, n in places])
        if name == "cell-kernels":
            names = [row[titles.index("Full name")] for row in rows]
            known = report_of("nvfp4")["kernels"]
            assert {*names} <= {" ".join(kernel["name"].split()) for kernel in known}
            assert max(map(len, names)) > 200
    for number, name in enumerate(figures):
        picture = view.picture_of(name, tmp_path)
        assert picture.stem == name
        assert min(png_size(picture)) > 300
        if number == 0:
            page = view.download(view.keyed(f"{name}-html").locator("button"), tmp_path)
            assert check_page(context, page) == 1
    view.check()


def assert_same(cells: list[str], row: list[str]) -> None:
    """A drawn row and its row of the CSV: the same texts, the same numbers to three digits."""
    for cell, value in zip(cells, row, strict=True):
        if cell == value or {cell, value} <= {"-", "None", "", "nan"}:
            continue
        drawn, saved = number(cell), number(value)
        assert drawn == pytest.approx(saved, rel=5e-3, abs=0.006), (cell, value)


_UNITS = {
    "us": 1.0, "ms": 1e3, "s": 1e6, "%": 1e-2, "x": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "GB/s": 1e9,
}  # fmt: skip


def number(text: str) -> float:
    """What is written, in the unit by which the table sorts."""
    value, _, unit = text.partition(" ")
    return float(value.lstrip("<>").replace(",", "")) * _UNITS.get(unit, 1.0)
