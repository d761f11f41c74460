"""The names that a program imports from the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_prof
from spark_prof.dashboards.render import RENDERERS
from spark_prof.errors import CommandError

DATA = Path(__file__).parent / "data"


def test_report_takes_a_bundle_its_folder_or_a_trace():
    folder = DATA / "h100-gpt-oss-20b-mxfp4-graphs"
    assert spark_prof.report(folder) == spark_prof.report(spark_prof.load(folder))
    imported = spark_prof.report(DATA / "kineto" / "qwen3-eager.json.gz")
    assert (imported.steps.decode, imported.steps.prefill) == (5, 1)


def test_a_report_shows_itself_in_a_notebook_and_in_a_console():
    report = spark_prof.report(DATA / "h100-gpt-oss-20b-mxfp4-graphs")
    shown = spark_prof.show(report)
    assert shown is report
    assert report._repr_markdown_() == RENDERERS["md"](report)
    assert repr(report) == RENDERERS["text"](report)
    drawn = report._repr_html_()
    assert "<script" not in drawn
    assert "spark-prof ab --b" in drawn
    assert len(drawn) < 20_000


def test_kernels_as_a_frame_add_up_to_the_report():
    report = spark_prof.report(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs")
    frame = report.kernels_frame()
    decode = frame[frame.phase == "decode"]
    assert report.roofline is not None
    assert report.roofline.decode is not None
    assert decode.us.sum() == pytest.approx(report.roofline.decode.kernels_us, rel=1e-6)
    bounds = sum(r.floor_us * r.calls for r in report.roofline.decode.rows if r.floor_us)
    assert decode.bound_us.sum() == pytest.approx(bounds, rel=1e-6)
    assert set(decode[decode.component == "experts"].layer) == set(range(48))
    assert decode.engine.notna().mean() > 0.9


def test_a_comparison_shows_its_answer():
    found = spark_prof.compare(DATA / "code-h100/dense-nvfp4", DATA / "code-h100/dense-awq")
    assert repr(found).startswith("dense-awq is 7.1 % slower than dense-nvfp4: ")
    drawn = found._repr_html_()
    assert "dense-awq is 7.1 % slower" in drawn
    assert "<script" not in drawn
    assert len(drawn) < 20_000
    assert found.found[0].phases[0].phase == "decode"


def test_figures_are_those_of_the_page():
    report = spark_prof.report(DATA / "h100-gpt-oss-20b-mxfp4-graphs")
    with pytest.raises(KeyError, match="no figure 'kernels'; there are waterfall, roofline, comp"):
        spark_prof.figures(report)["kernels"]
    found = spark_prof.figures(report)
    page = RENDERERS["html"](report)
    assert re.findall(r'<div id="chart-(\w+)"', page) == list(found)
    assert {"waterfall", "components", "layers"} <= set(found)


def test_importing_the_package_imports_nothing_heavy():
    program = (
        "import sys, spark_prof; "
        "sys.exit(bool({'numpy', 'pandas', 'plotly', 'torch'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_no_recording_is_refused():
    with pytest.raises(CommandError, match="nothing that can be read"):
        spark_prof.report(DATA / "README.md")
