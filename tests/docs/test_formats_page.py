"""The page of formats has a row for each that is recognised, and its counters are known."""

from __future__ import annotations

import re

import pytest
from spark_prof.analyzers.classify.counters import find_counter

from spark_prof.traces import formats
from spark_prof.traces.readers.nsys_stats import REPORTS
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "formats.md"


def test_every_format_has_a_row() -> None:
    rows = tables(PAGE, "What can be read")[0]
    found = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    folders = {formats.BENCHMARK, formats.BUNDLE, formats.PIECES, formats.FOLDER}
    assert found == {known.name for known in formats.FORMATS} | folders


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_every_report_of_nsys_stats_is_named(report: object) -> None:
    assert f"`{report.name}`" in PAGE.read_text(encoding="utf-8")  # type: ignore[attr-defined]


def test_its_counters_are_known_and_see_what_it_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = set(re.findall(r"`(sms?p?__[a-z0-9_]+)`", text))
    counters = {name: find_counter(f"{name}.sum") for name in names}
    assert all(counters.values())
    instructions = counters["sm__inst_executed_pipe_tensor"]
    cycles = counters["sm__pipe_tensor_cycles_active"]
    assert instructions is not None
    assert cycles is not None
    assert instructions.complete_on == {7, 8, 12}
    assert cycles.complete_on == {7, 8, 9, 12}
