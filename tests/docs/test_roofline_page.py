"""The figures of the page about the roofline are those of the captures."""

from __future__ import annotations

import pytest

import spark_prof
from spark_prof.dashboards.formats import microseconds, share
from tests.docs.pages import ROOT, tables

ROWS = tables(ROOT / "docs" / "roofline.md", "The floor")[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_figures_of_a_capture(row: list[str]) -> None:
    report = spark_prof.report(ROOT / "tests" / "data" / row[0])
    assert report.roofline is not None
    phase = report.roofline.decode
    assert phase is not None
    assert row[1:] == [
        microseconds(phase.floor_us),
        microseconds(phase.kernels_us),
        microseconds(phase.step_us),
        share(phase.of_floor),
    ]
