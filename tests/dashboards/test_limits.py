"""Reports of very large recordings: they stay within their size, and say what they leave out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.render import RENDERERS, markdown
from spark_prof.dashboards.render.limits import bounded_record, shortened
from spark_prof.dashboards.section import Column, Document, DocumentBounds, Section
from spark_prof.errors import CommandError

from .documents import whole
from .page import Page, check_page
from .sample import SAMPLES

_NUMBERS = Section(
    "numbers",
    "Numbers",
    (Column("Number", "number"), Column("Name", "name")),
    tuple((str(number), "x" * 40) for number in range(100_000)),
)


def _document(*sections: Section) -> Document:
    return Document("Title", (), sections)


def _layers_and_names(layers: int, names: int) -> Report:
    """A report of as many layers, none like another, and as many kernels with long names."""
    report = SAMPLES["deep"]
    rows = [row for row in report.layers if row.layer == 0]
    kernel = report.kernels[0]
    return replace(
        report,
        layers=tuple(
            replace(row, layer=layer, us=row.us * 1.06**layer)
            for layer in range(layers)
            for row in rows
        ),
        kernels=tuple(
            replace(kernel, name=f"kernel_{number}<{'int, ' * 60}>", us=float(names - number))
            for number in range(names)
        ),
    )


def _grown(value: Any, times: int) -> Any:
    """The same with every tuple inside as many times as long."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init)
        return replace(value, **{name: _grown(getattr(value, name), times) for name in fields})
    if isinstance(value, tuple):
        return tuple(_grown(item, 2) for item in value) * times
    return value


def test_a_long_table_ends_early_and_says_so() -> None:
    drawn = markdown.draw(_document(_NUMBERS))
    shown = len(re.findall(r"^\| \d+ \|", drawn, re.M))
    assert 100 < shown <= 400
    assert f"Only the first {shown} of 100,000 rows; JSON has them all." in drawn
    assert f"| {shown - 1} |" in drawn


def test_as_many_rows_are_shown_as_fit() -> None:
    def fits(document: Document) -> bool:
        return sum(len(section.rows) for section in document.sections) <= 130

    found = shortened(_document(_NUMBERS, replace(_NUMBERS, rows=_NUMBERS.rows[:20])), fits)
    assert [len(section.rows) for section in found.sections] == [110, 20]
    assert found.sections[1].intro == ()


@pytest.mark.slow
def test_where_nothing_else_helps_sections_are_left_out_by_name() -> None:
    endless = tuple(
        Section(f"s{place}", f"Section {place}", (Column("", "prose"),), (("y" * 50_000,),))
        for place in range(400)
    )
    drawn = markdown.draw(_document(*endless))
    assert len(drawn) <= 32_000
    assert "## Section 0\n" in drawn
    assert "## Left out, as too long; JSON has it" in drawn
    assert "- Section 399\n" in drawn


def test_what_fits_is_not_touched() -> None:
    document = _document(replace(_NUMBERS, rows=_NUMBERS.rows[:400]))
    assert shortened(document, lambda _: True) == document


@pytest.mark.slow
@pytest.mark.parametrize(
    "large",
    [lambda: _layers_and_names(1_000, 100_000), lambda: _grown(SAMPLES["filled"], 300)],
    ids=["layers and names", "everything"],
)
def test_a_large_report_keeps_its_size(large: Callable[[], Report]) -> None:
    report = large()
    page = RENDERERS["html"](report)
    assert len(page.encode()) < 6_000_000
    check_page(Page(page))
    assert len(whole(report, "md")) <= 32_000


def test_a_record_has_so_many_rows_of_each_list() -> None:
    rows = [{"x": [{"y": n} for n in range(n)]} for n in range(5)]
    record = {"a": rows, "b": {"c": [[1.5] * 9] * 3, "d": [7] * 9, "e": []}, "f": "text"}
    for limit, left_out in (
        (0, {"a": 5, "b.c": 3}),
        (2, {"a": 3, "b.c": 1}),
        (3, {"a": 2}),
        (9, {}),
    ):
        found = bounded_record(record, DocumentBounds(limit=limit))
        first = [{"x": row["x"][:limit]} for row in rows[:limit]]
        numbers = {"c": [[1.5] * 9] * min(3, limit), "d": [7] * 9, "e": []}
        assert found == {"a": first, "b": numbers, "f": "text", "left_out": left_out}
    own = bounded_record({"left_out": 4, "a": rows}, DocumentBounds(limit=1))
    assert (own["left_out"], own["rows_left_out"]) == (4, {"a": 4})
    assert bounded_record(rows, DocumentBounds(limit=2)) == {"rows": rows[:2], "left_out": 3}
    assert bounded_record(record, DocumentBounds()) is record
    chosen = bounded_record({"schema": "s", **record}, DocumentBounds(sections=("b",)))
    assert chosen == {"schema": "s", "b": record["b"], "f": "text", "left_out": {}}
    with pytest.raises(CommandError, match="no section nothing"):
        bounded_record(record, DocumentBounds(sections=("nothing",)))
