"""The names that a program imports from the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_prof
from spark_prof.cli.main import main
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
    comparison = spark_prof.compare(DATA / "code-h100/dense-nvfp4", DATA / "code-h100/dense-awq")
    assert repr(comparison).startswith("the kernels of dense-awq are 7.1 % slower than those of ")
    drawn = comparison._repr_html_()
    assert "dense-awq are 7.1 % slower" in drawn
    assert "<script" not in drawn
    assert len(drawn) < 20_000
    assert comparison.comparisons[0].phases[0].phase == "decode"


def test_figures_are_those_of_the_page():
    report = spark_prof.report(DATA / "h100-gpt-oss-20b-mxfp4-graphs")
    with pytest.raises(KeyError, match="no figure 'kernels'; there are waterfall, roofline, comp"):
        spark_prof.figures(report)["kernels"]
    found = spark_prof.figures(report)
    page = RENDERERS["html"](report)
    assert re.findall(r'<div id="chart-(\w+)"', page) == list(found)
    assert {"waterfall", "components", "layers"} <= set(found)


def test_only_names_to_call_are_listed():
    assert dir(spark_prof) == sorted(spark_prof.__all__)
    assert {"why", "doctor", "classify", "report"} <= set(dir(spark_prof))
    assert all(callable(getattr(spark_prof, name)) for name in dir(spark_prof))


def test_why_says_what_the_command_says(capsys, monkeypatch):
    sides = [str(DATA / "models" / f"qwen3-next-80b-a3b-{form}") for form in ("nvfp4", "fp8")]
    found = spark_prof.why(*sides, gpu="gb10", measured=[35, 44])
    assert found.gaps[0].us == pytest.approx(1e6 / 35 - 1e6 / 44)
    monkeypatch.setattr(sys, "argv", ["spark-prof", "why", *sides, "--measured", "35,44"])
    assert main() == 0
    assert capsys.readouterr().out.strip() == repr(found).strip()
    assert "63.0 % of 55.6" in found._repr_html_()
    with pytest.raises(CommandError, match="why needs a source"):
        spark_prof.why()


def test_the_doctor_reads_a_log_and_a_model():
    found = spark_prof.doctor(DATA / "logs" / "qwen3-30b-a3b-nvfp4.log", gpu="h100")
    assert found.audit is not None
    assert found.subject in repr(found)
    assert "<script" not in found._repr_html_()
    model = spark_prof.doctor(model=DATA / "models" / "qwen3-8b-nvfp4", gpu="gb10")
    assert model.ceilings is not None
    assert "GB10" in repr(model)


def test_kernels_are_classified():
    recording = DATA / "code-h100" / "dense-awq"
    found = spark_prof.classify(recording)
    assert set(found.frame()["name"]) == {row.name for row in found.rows}
    assert {row.evidence for row in found.rows} & {"sass", "name"}
    [one] = spark_prof.classify(names=["void marlin::Marlin<int>(int4 const*)"]).rows
    assert one.engine == "tensor-core"
    assert "marlin" in repr(spark_prof.classify(names=[one.name]))
    with pytest.raises(CommandError, match="either a source or names"):
        spark_prof.classify()


def test_what_is_opened_and_found_says_what_it_is():
    folder = DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"
    shown = repr(spark_prof.load(folder))
    assert re.fullmatch(r"Bundle\('.*', rank 0, [\d,]+ steps, [\d,]+ kernels\)", shown)
    finding = spark_prof.report(folder).findings[0]
    assert repr(finding).startswith(f"<Finding {finding.key}, up to ")
    assert "ms a token: " + finding.text in repr(finding)


def test_importing_the_package_imports_nothing_heavy():
    program = (
        "import sys, spark_prof; "
        "sys.exit(bool({'numpy', 'pandas', 'plotly', 'torch'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_no_recording_is_refused():
    with pytest.raises(CommandError, match="nothing that can be read"):
        spark_prof.report(DATA / "README.md")
