"""Rules about the memory that decode steps wait for: what fires them, what keeps them quiet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import RULES, findings_of
from spark_prof.analyzers.model import Report
from tests.analyzers.reported import reported
from tests.analyzers.roofline.recorded import FIRST, HEAD, LAYERS, SECOND, bundle
from tests.rows import each_row

AT_THE_FLOOR = (7.5, 3.0, 5.0, 3.5, 210.0)


IDS = ("far-from-memory-floor", "bf16-weights-dominate", "read-more-than-needed")


def found(report: Report) -> dict[str, list[Finding]]:
    result: dict[str, list[Finding]] = {}
    for finding in findings_of(report):
        if finding.id in IDS:
            assert finding.evidence
            result.setdefault(finding.id, []).append(finding)
    return result


def quantized_head() -> list[dict[str, Any]]:
    return [
        dict(row) | ({"weight_dtype": "float8_e4m3fn"} if row["component"] == "lm_head" else {})
        for row in LAYERS
    ]


SLOW = (7.5, 3.0, 40.0, 3.5, 210.0)
SLOW_HEAD = (7.5, 3.0, 5.0, 3.5, 600.0)


@each_row(
    ("us", "more", "rule", "ms", "text", "fix"),
    [
        # Nearly all of the 40 us are above the floor of 4.4.
        (SLOW, {}, "far-from-memory-floor", 0.0356, "w13: 8 of 128 experts", "--moe-backend"),
        # An old vLLM is told of no flag that it lacks, an unquantized layer of no backend.
        (SLOW, {"vllm": "0.15.1"}, "far-from-memory-floor", 0.0356, "", "!--"),
        (SLOW_HEAD, {}, "far-from-memory-floor", None, HEAD, "quantized format"),
        # 210 us of the head and 7.5 of qkv, of which MXFP4 would leave 27 %.
        (AT_THE_FLOOR, {}, "bf16-weights-dominate", 0.2175 * (1 - 0.53125 / 2), "lm_head 0.62 GB",
         "quantiz"),
    ],
)  # fmt: skip
def test_it_fires(
    tmp_path: Path, us: tuple[float, ...], more: dict[str, Any], rule: str, ms: float | None,
    text: str, fix: str,
) -> None:  # fmt: skip
    report = reported(bundle(tmp_path / "b", us=us, **{"vllm": "0.26.0"} | more))
    (finding,) = found(report)[rule]
    assert text in finding.text
    assert (fix[1:] not in finding.fix) if fix.startswith("!") else (fix in finding.fix)
    if ms is not None:
        assert finding.ms_per_token == pytest.approx(ms, rel=0.02)


@pytest.mark.slow
@each_row(
    ("us", "more", "rule", "slow"),
    [
        # Of experts that nobody saw being chosen: four tokens may hit as many as take all the time.
        (SLOW, {"tokens": (4, 4, 4)}, "far-from-memory-floor", FIRST),
        (AT_THE_FLOOR, {}, "far-from-memory-floor", None),
        # Thrice its floor, and 1.5 % of the step.
        ((7.5, 3.0, 5.0, 6.0, 250.0), {}, "far-from-memory-floor", SECOND),
        (AT_THE_FLOOR, {"layers": quantized_head()}, "bf16-weights-dominate", None),
        ((7.5, 2500.0, 5.0, 3.5, 210.0), {}, "bf16-weights-dominate", None),
    ],
)
def test_it_is_quiet(
    tmp_path: Path, us: tuple[float, ...], more: dict[str, Any], rule: str, slow: str | None
) -> None:
    report = reported(bundle(tmp_path / "b", us=us, **{"vllm": "0.26.0"} | more))
    rows = {row.name: row for row in report.roofline.decode.rows}  # type: ignore[union-attr]
    assert slow is None or rows[slow].us > 2 * (rows[slow].floor_us or 0)
    assert rule not in found(report)


@pytest.mark.parametrize(("times", "fires"), [(1.05, False), (1.19, False), (1.5, True)])
def test_bytes_that_are_read_again(tmp_path: Path, times: float, fires: bool) -> None:
    report = reported(bundle(tmp_path / "b", us=AT_THE_FLOOR))
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
    (rule,) = (rule for rule in RULES if rule.id == "read-more-than-needed")
    findings = list(rule.find(counted))
    assert bool(findings) is fires
    for finding in findings:
        assert "1.50 times" in finding.text
        assert finding.ms_per_token == pytest.approx(0.210 / 3, rel=0.01)
    # Two others take all of that matrix, which is no longer than it is.
    for finding in found(counted).get("read-more-than-needed", []):
        assert (finding.ms_per_token, finding.within) == (None, "bf16-weights-dominate")


def test_of_an_unknown_gpu_nothing_is_found(tmp_path: Path) -> None:
    assert found(reported(bundle(tmp_path / "b", gpu={}))) == {}
