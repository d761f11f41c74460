"""What a report says twice it says alike: one statistic, one unit, one way to write it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import LAUNCH_GAPS
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.render import render_report
from spark_prof.dashboards.units import microseconds

DATA = Path(__file__).parents[1] / "data"
SOURCES = (
    "h100-qwen3-30b-a3b-nvfp4-graphs",
    "code-h100/dense-awq",
    "compare-h100/gpt-graph",
    "kineto/gpt-oss-eager.json.gz",
)


@pytest.fixture(scope="module", params=SOURCES)
def report(request: pytest.FixtureRequest) -> Report:
    return spark_prof.report(DATA / request.param)


def test_small_kernels_are_those_of_the_breakdown(report: Report) -> None:
    parts = [part for part in waterfall_of(report).parts if part.kind == "small"]
    for finding in report.findings:
        if finding.id == "small-kernels":
            [part] = parts
            assert f"{part.calls:,.0f} kernels of a decode step" in finding.text
            assert f"{part.us:,.1f} us together" in finding.text


def test_answers_write_what_the_tables_write(report: Report) -> None:
    texts = {answer.id: answer.text for answer in report.answers}
    ledger = report.decode_ledger
    assert ledger is not None
    assert microseconds(ledger.us(LAUNCH_GAPS)) in texts["overhead"]
    if "memory" in texts and report.roofline and (phase := report.roofline.decode):
        assert microseconds(phase.floor_us) in texts["memory"]
        assert microseconds(phase.step_us) in texts["memory"]


def test_a_unit_is_written_one_way(report: Report) -> None:
    text = " ".join(render_report(report, "text", sections=None).split())
    assert not re.search(r"[0-9]%", text)
    assert not re.search(r"[0-9] [KMGT]iB", text)
