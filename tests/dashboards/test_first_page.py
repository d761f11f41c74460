"""What a report says first: the words of the explorer's first page, as HTML without scripts."""

from __future__ import annotations

import re

import pytest

from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards import about_waterfall
from spark_prof.dashboards.first_page import NO_FINDINGS, first_look, first_page
from spark_prof.dashboards.formats import clean
from spark_prof.dashboards.waterfall_bars import bars_of
from spark_prof.traces.some_steps import Share
from tests.rows import each_row

from .page import Page
from .sample import SAMPLES

TAGS = {"h1", "h2", "p", "dl", "div", "dt", "dd", "span", "i", "b"}
STYLE = re.compile(r"left:(\d+\.\d+)%;width:(\d+\.\d+)%;background:#[0-9a-fA-F]{6}")
SHARE = Share(steps=270, of_steps=20_577, kernels=160_000, of_kernels=10_000_000)


@each_row("name", SAMPLES)
def test_it_says_what_the_report_says(name: str) -> None:
    report = SAMPLES[name]
    page = Page(first_page(report))
    shown = " ".join(page.texts)
    for sentence in about_waterfall.verdict(report):
        assert clean(sentence) in shown
    for finding in report.findings[:10]:
        assert clean(finding.text) in shown
        assert clean(finding.fix) in shown
    assert (NO_FINDINGS in shown) is not report.findings


@each_row("name", SAMPLES)
def test_nothing_of_the_report_becomes_a_tag(name: str) -> None:
    page = Page(first_page(SAMPLES[name], SHARE))
    assert {tag for tag, _ in page.tags} <= TAGS
    attributes = {key for _, found in page.tags for key in found}
    assert attributes <= {"class", "style", "role", "aria-label"}
    assert not page.scripts


@each_row("name", SAMPLES)
def test_the_bars_are_those_of_the_figure(name: str) -> None:
    report = SAMPLES[name]
    page = Page(first_page(report))
    drawn = [found["style"] or "" for tag, found in page.tags if tag == "i"]
    if not about_waterfall.waterfall(report).rows:
        assert not drawn
        return
    bars = bars_of(waterfall_of(report))
    assert len(drawn) == len(bars)
    for bar, style in zip(bars, drawn, strict=True):
        found = STYLE.fullmatch(style)
        assert found, style
        left, width = map(float, found.groups())
        assert 0 <= left <= left + width <= 100
        assert style.endswith(bar.color)
        if bar.begin_us >= 0 <= bar.begin_us + bar.us:
            longest = max(b.begin_us + b.us for b in bars)
            assert width == pytest.approx(80 * abs(bar.us) / longest, abs=2e-3)


def test_a_first_look_says_of_how_many_steps_it_is() -> None:
    shown = " ".join(Page(first_page(SAMPLES["mixture_of_experts"], SHARE)).texts)
    assert first_look(SHARE) in shown
    assert "270 of 20,577 steps" in shown
    assert "First look" not in first_page(SAMPLES["mixture_of_experts"])
