"""The figures in the pages about the ledger and about conversions are those of their recording."""

from __future__ import annotations

import pytest

import spark_prof
from spark_prof.analyzers.model import Report
from tests.docs.pages import CAPTURE, ROOT, tables


@pytest.fixture(scope="module")
def report() -> Report:
    if not (ROOT / CAPTURE).exists():
        pytest.skip(f"{CAPTURE} is not there")
    return spark_prof.report(ROOT / CAPTURE)


def test_the_example(report: Report) -> None:
    ledger = report.tokens[0]
    assert ledger.ms_per_token is not None
    wanted = [
        [f"`{row.name}`", f"{row.ms_per_token:.3f}", f"{100 * row.share:.1f} %"]
        for row in sorted(ledger.rows, key=lambda row: -row.charged_us)
    ]
    wanted.append(["total", f"{ledger.ms_per_token:.3f}", "100.0 %"])
    found = tables(ROOT / "docs" / "ledger.md", "An example")[0]
    assert [list(row) for row in found] == wanted


def test_what_is_converted(report: Report) -> None:
    page = (ROOT / "docs" / "conversions.md").read_text(encoding="utf-8")
    assert f"{report.conversions.us_per_token:.1f} us of each" in page
    assert not any(row.layers for row in report.conversions.charged if row.decode_us)
