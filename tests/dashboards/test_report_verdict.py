"""The first line of a report is an answer of figures that stand below it, in every format."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.report_verdict import shown_findings, verdict_of
from spark_prof.dashboards.sections.waterfall_section import name_of
from spark_prof.dashboards.short_report import short_report
from spark_prof.dashboards.units import microseconds
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
SAYS = {
    "ab-h100/recording-a-1": "its largest part is launch gaps, 1.45 ms (33.0 %)",
    # A lower bound that is larger than any part beyond it comes first.
    "ab-h100/recording-b-1": "its lower bound is 641.0 us of that (28.2 %), and the largest part "
    "beyond it is launch gaps, 602.7 us (26.5 %)",
    "h100-gpt-oss-20b-mxfp4-eager": "most of it, 67.31 ms (87.8 %), is launch gaps; first try "
    "--no-enforce-eager (at most 68.59 ms of a token; ab would tell its gain).",
    "h100-gpt-oss-20b-mxfp4-graphs": "by only 4 decode steps",
    "compare-h100/qwen-graph": "A token takes 6.61 ms at batch 8; its largest part is experts",
    "kineto/gpt-oss-graphs": "look first at idle-gpu",  # nothing to start an engine with
    "ncu-h100/awq.csv": "us; most of it, 129.3 us (65.6 %), is other",
    "proton/trace.chrome_trace": "The recording lasts 28.92 ms; ",
}


@pytest.mark.slow
@each_row(("name", "says"), list(SAYS.items()))
def test_it_answers_in_one_sentence_of_figures_below_it(name: str, says: str) -> None:
    report = spark_prof.report(DATA / name)
    verdict, found = verdict_of(report), waterfall_of(report)
    assert says in verdict
    assert verdict.count(". ") == 0
    assert microseconds(found.us) in verdict
    screen = short_report(report)
    assert screen.verdict == verdict
    rows = {str(row[0]): str(row[1]) for s in screen.sections if s.id == "parts" for row in s.rows}
    named = max((p for p in found.parts if p.kind not in ("floor", "rest")), key=lambda p: p.us)
    assert rows[name_of(named, found.of)] in verdict
    if shown := shown_findings(report.findings):
        titles = [s.title for s in screen.sections if s.id.startswith("findings-")]
        gains = (microseconds(1000 * f.ms_per_token) for f in shown if f.ms_per_token)
        assert any(gain in verdict for gain in gains)
        assert len(titles) == len(shown)


def test_it_is_the_first_line_of_every_format() -> None:
    report = spark_prof.report(DATA / "ab-h100" / "recording-a-1")
    verdict = verdict_of(report)
    assert render_report(report, Layout("text", 400)).splitlines()[0] == verdict
    for whole in (False, True):
        first = render_report(report, Layout("md"), whole=whole).splitlines()[0]
        assert first.replace("\\", "").replace("<!-- -->", "") == f"# {verdict}"
    html = unescape(render_report(report, Layout("html")))
    assert html.partition("<h1>")[2].startswith(verdict)
    assert json.loads(render_report(report, Layout("json")))["verdict"] == verdict


@pytest.fixture(scope="module")
def recorded() -> Report:
    return spark_prof.report(DATA / "ab-h100" / "recording-a-1")


def test_it_abstains_where_nothing_is_known(recorded: Report) -> None:
    nothing = replace(recorded, accounts=(), kernels=(), findings=())
    assert verdict_of(nothing) == "Nothing in this recording tells a time."
    assert verdict_of(replace(recorded, findings=())).endswith(
        "; nothing worth changing was found."
    )
