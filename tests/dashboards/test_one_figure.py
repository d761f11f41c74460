"""What a report says twice it says alike: one statistic, one unit, one way to write it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import LAUNCH_GAPS
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.render import Layout, render_report
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


def test_what_small_kernels_cost_is_what_their_sentence_adds_up_to(report: Report) -> None:
    """Also on the first screen: the claim is more than the part, by the time between kernels."""
    for finding in report.findings:
        if finding.id == "small-kernels" and finding.ms_per_token:
            text = " ".join(render_report(report, Layout()).split())
            told = re.search(r"([\d,.]+) us together, with ([\d,.]+) us between them", text)
            assert told, text
            whole = sum(float(figure.replace(",", "")) for figure in told.groups()) / 1e3
            assert whole == pytest.approx(finding.ms_per_token, abs=0.2e-3)


def test_times_of_findings_are_those_of_the_tables(report: Report) -> None:
    text = " ".join(render_report(report, Layout(), whole=True).split())
    texts = {found.id: found.text for found in report.findings}
    if "lm-head-not-quantized" in texts:
        [product] = [k for k in report.kernels if k.component == "lm_head" and "nvjet" in k.name]
        assert microseconds(product.decode_us_per_step) in texts["lm-head-not-quantized"]
        assert f"{microseconds(product.decode_us_per_step)} " in text
    for found in report.findings:
        above = re.search(r"step are ([\d.,]+ .s) above their lower bound", found.text)
        if above and found.ms_per_token:
            assert above[1] == microseconds(1e3 * found.ms_per_token)
    parts = [part for part in waterfall_of(report).parts if part.kind == "conversion"]
    if parts and report.conversions.us_per_token:
        assert microseconds(parts[0].us) == microseconds(report.conversions.us_per_token)


def test_components_layers_and_kernels_of_a_step_add_up_to_the_same(report: Report) -> None:
    step = report.decode_step
    assert step is not None
    for row in step.parts:
        kernels = sum(k.decode_us_per_step for k in report.kernels if k.component == row.name)
        layers = sum(n.decode_us_per_step for n in report.layers if n.component == row.name)
        if kernels:
            assert kernels == layers
            assert kernels == pytest.approx(row.kernel_us, rel=0.01)


def test_answers_write_what_the_tables_write(report: Report) -> None:
    texts = {answer.id: answer.text for answer in report.answers}
    step = report.decode_step
    assert step is not None
    assert microseconds(step.us(LAUNCH_GAPS)) in texts["overhead"]
    if "memory" in texts and report.roofline and (phase := report.roofline.decode):
        assert microseconds(phase.floor_us) in texts["memory"]
        assert microseconds(phase.step_us) in texts["memory"]


def test_a_unit_is_written_one_way(report: Report) -> None:
    text = " ".join(render_report(report, Layout(), whole=True).split())
    assert not re.search(r"[0-9]%", text)
    assert not re.search(r"[0-9] [KMGT]iB", text)
