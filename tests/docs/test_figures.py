"""The figures in the pages are those of the captures that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.formats import share
from tests.docs.pages import CAPTURE, README, README_CAPTURE, ROOT, tables, with_report

EAGER = "tests/data/h100-gpt-oss-20b-mxfp4-eager"


def report_of(capture: str) -> Report:
    if not (ROOT / capture).exists():
        pytest.skip(f"{capture} is not there")
    return spark_prof.report(ROOT / capture)


def page(name: str) -> str:
    return Path(ROOT / name).read_text(encoding="utf-8")


def test_the_readme_shows_the_report_of_its_capture() -> None:
    report_of(README_CAPTURE)
    readme = README.read_text(encoding="utf-8")
    assert readme == with_report(readme), "run: python -m tests.docs.pages"


@pytest.mark.parametrize(("row", "capture"), [(0, EAGER), (1, CAPTURE)])
def test_coverage(row: int, capture: str) -> None:
    coverage = report_of(capture).coverage
    measured = [share(part) for part in (coverage.layer, coverage.component, coverage.engine)]
    attribution = ROOT / "docs" / "attribution.md"
    assert tables(attribution, "Coverage")[2][row][1:] == measured
    if capture == CAPTURE:
        assert f"{measured[0]} of the kernel time has a layer and {measured[1]}" in page(
            "README.md"
        )


def test_the_real_example_of_the_books() -> None:
    decode = next(entry for entry in report_of(CAPTURE).books if entry.phase == "decode")
    parts = (decode.step_us, decode.kernels_us, decode.copies_us, decode.overlap_us, decode.gap_us)
    figures = [*parts, abs(decode.residual_us)]
    assert [f for f in figures if f"{f:,.3f}" not in page("docs/steps.md")] == []


def test_the_conclusion_from_the_readme_s_report() -> None:
    report = report_of(README_CAPTURE)
    decode = next(entry for entry in report.books if entry.phase == "decode")
    assert report.steps.decode_us is not None
    figures = [
        f"{report.steps.decode_us.median / 1e3:.2f} ms in the median",
        f"{decode.kernels_us / decode.steps / 1e3:.2f} ms",
        f"{share(decode.gap_us / decode.step_us)} of the mean step",
    ]
    assert [figure for figure in figures if figure not in page("README.md")] == []
