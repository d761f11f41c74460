"""Rules about the memory that decode steps wait for: what fires them, what keeps them quiet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spark_prof
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import findings_of
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summarize
from tests.analyzers.roofline.recorded import FIRST, HEAD, LAYERS, SECOND, bundle

DATA = Path(__file__).parents[2] / "data"
AT_THE_FLOOR = (7.5, 3.0, 5.0, 3.5, 210.0)


IDS = ("far-from-memory-floor", "bf16-weights-dominate", "read-more-than-needed")


def found(report: Report) -> dict[str, list[Finding]]:
    result: dict[str, list[Finding]] = {}
    for finding in findings_of(report):
        if finding.id in (
            "far-from-memory-floor",
            "bf16-weights-dominate",
            "read-more-than-needed",
        ):
            assert finding.evidence
            result.setdefault(finding.id, []).append(finding)
    return result


def quantized_head() -> list[dict[str, Any]]:
    return [
        dict(row) | ({"weight_dtype": "float8_e4m3fn"} if row["component"] == "lm_head" else {})
        for row in LAYERS
    ]


def test_a_slow_kernel_is_far_from_its_floor(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", us=(7.5, 3.0, 40.0, 3.5, 210.0), vllm="0.26.0"))
    (finding,) = found(report)["far-from-memory-floor"]
    assert FIRST in finding.text
    assert "w13: 8 of 128 experts" in finding.text
    assert "--moe-backend" in finding.fix
    # Nearly all of the 40 us are above the floor of 4.4.
    assert finding.ms_per_token == pytest.approx(0.0356, rel=0.02)


def test_of_experts_that_nobody_saw_being_chosen_nothing_is_found(tmp_path: Path) -> None:
    """Four tokens may hit as many experts as take all of the time."""
    us = (7.5, 3.0, 40.0, 3.5, 210.0)
    report = summarize(bundle(tmp_path / "b", us=us, tokens=(4, 4, 4), vllm="0.26.0"))
    rows = {row.name: row for row in report.roofline.decode.rows}  # type: ignore[union-attr]
    assert rows[FIRST].us > 2 * (rows[FIRST].floor_us or 0)
    assert "far-from-memory-floor" not in found(report)


def test_an_old_vllm_is_told_of_no_flag_that_it_lacks(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", us=(7.5, 3.0, 40.0, 3.5, 210.0), vllm="0.15.1"))
    (finding,) = found(report)["far-from-memory-floor"]
    assert "--" not in finding.fix


def test_an_unquantized_layer_is_told_of_no_backend(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", us=(7.5, 3.0, 5.0, 3.5, 600.0), vllm="0.26.0"))
    (finding,) = found(report)["far-from-memory-floor"]
    assert HEAD in finding.text
    assert "quantized format" in finding.fix


def test_kernels_at_their_floor_are_left_alone(tmp_path: Path) -> None:
    assert "far-from-memory-floor" not in found(summarize(bundle(tmp_path / "b", us=AT_THE_FLOOR)))


def test_a_slow_kernel_that_takes_little_of_the_step_is_left_alone(tmp_path: Path) -> None:
    # Thrice its floor, and 1.5 % of the step.
    us = (7.5, 3.0, 5.0, 6.0, 250.0)
    report = summarize(bundle(tmp_path / "b", us=us))
    rows = {row.name: row for row in report.roofline.decode.rows}  # type: ignore[union-attr]
    assert rows[SECOND].us > 2 * (rows[SECOND].floor_us or 0)
    assert "far-from-memory-floor" not in found(report)


def test_wide_weights_that_take_the_step_are_a_finding(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", us=AT_THE_FLOOR))
    (finding,) = found(report)["bf16-weights-dominate"]
    assert "lm_head 0.62 GB" in finding.text
    assert "llm-compressor" in finding.fix or "--quantization fp8" in finding.fix
    assert finding.ms_per_token is not None
    # 210 us of the head and 7.5 of qkv, of which MXFP4 would leave 27 %.
    assert finding.ms_per_token == pytest.approx(0.2175 * (1 - 0.53125 / 2), rel=0.01)


def test_weights_that_are_narrow_are_none(tmp_path: Path) -> None:
    report = summarize(bundle(tmp_path / "b", us=AT_THE_FLOOR, layers=quantized_head()))
    assert "bf16-weights-dominate" not in found(report)


def test_a_wide_head_that_takes_little_of_the_step_is_none(tmp_path: Path) -> None:
    us = (7.5, 2500.0, 5.0, 3.5, 210.0)
    assert "bf16-weights-dominate" not in found(summarize(bundle(tmp_path / "b", us=us)))


@pytest.mark.parametrize(("times", "fires"), [(1.05, False), (1.19, False), (1.5, True)])
def test_bytes_that_are_read_again(tmp_path: Path, times: float, fires: bool) -> None:
    report = summarize(bundle(tmp_path / "b", us=AT_THE_FLOOR))
    assert report.roofline is not None
    phase = report.roofline.decode
    assert phase is not None
    rows = tuple(
        replace(row, read_bytes=times * row.streamed_bytes, read_by="PM sampling",
                amplification=times) if row.name == HEAD else row
        for row in phase.rows
    )  # fmt: skip
    roofline = replace(report.roofline, phases=(replace(phase, rows=rows),))
    counted = replace(report, roofline=roofline)
    findings = found(counted).get("read-more-than-needed", [])
    assert bool(findings) is fires
    for finding in findings:
        assert "1.50 times" in finding.text
        assert finding.ms_per_token == pytest.approx(0.210 / 3, rel=0.01)


def test_a_report_without_a_roofline_has_no_findings_of_it(tmp_path: Path) -> None:
    report = replace(summarize(bundle(tmp_path / "b")), roofline=None)
    assert found(report) == {}
    unknown = summarize(bundle(tmp_path / "c", gpu={}))
    assert found(unknown) == {}


def test_what_the_captures_say() -> None:
    gpt = found(spark_prof.report(DATA / "h100-gpt-oss-20b-mxfp4-graphs"))
    assert [SECOND in finding.text for finding in gpt["far-from-memory-floor"]] == [True]
    assert "65% of the bytes" in gpt["bf16-weights-dominate"][0].text
    qwen = found(spark_prof.report(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"))
    # Both products of the experts; whose the kernels of qkv and o_proj are is told by order alone.
    assert len(qwen["far-from-memory-floor"]) == 2
    assert all("arlin" in finding.text for finding in qwen["far-from-memory-floor"])
    # A head in BF16 is 28 % of its bytes and 5 % of its step.
    assert "bf16-weights-dominate" not in qwen
