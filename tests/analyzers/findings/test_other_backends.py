"""Which backend is proposed in place of the one that ran, by GPU, format and version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import spark_prof
from spark_prof.analyzers.findings.other_backends import OtherBackends, advice, other_backends
from spark_prof.analyzers.model import Report
from tests.rows import each_row

DATA = Path(__file__).parents[3] / "tests/data"
HUMMING = "void humming<MmaOpClass, Shape<0u, 768u, 2048u>, LayerConfig>"


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """By the experts' format."""
    return {
        "nvfp4": spark_prof.report(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"),
        "mxfp4": spark_prof.report(DATA / "h100-gpt-oss-20b-mxfp4-graphs"),
    }


def ran(report: Report, family: str, capability: str, vllm: str) -> Report:
    """The report of a run on another GPU and vLLM, whose experts ran on kernels of a family."""
    assert report.audit is not None
    rows = tuple(
        replace(row, witnesses=tuple(replace(w, family=family) for w in row.witnesses))
        if row.layer == "experts"
        else row
        for row in report.audit.rows
    )
    return replace(
        report,
        audit=replace(report.audit, rows=rows),
        gpu=replace(report.gpu, compute_capability=capability),
        run=replace(report.run, vllm=vllm),
    )


@each_row(
    ("stored", "family", "capability", "vllm", "values", "later"),
    [
        # Humming is the first choice on Hopper from 0.32 on; who runs Marlin is sent to it.
        ("nvfp4", "Humming", "9.0", "0.33.0", "", "marlin"),
        ("nvfp4", "Marlin", "9.0", "0.33.0", "humming", ""),
        # 0.28 to 0.31 have it behind Marlin, which the newest vLLM does not.
        ("nvfp4", "Marlin", "9.0", "0.28.0", "humming", ""),
        ("nvfp4", "Marlin", "9.0", "0.24.0", "", ""),
        # gpt-oss on a GB10: MARLIN comes before TRITON, and nobody is sent to it as to a gain.
        ("mxfp4", "Marlin", "12.1", "0.33.0", "", "triton humming"),
        ("mxfp4", "Triton", "12.1", "0.33.0", "marlin", "humming"),
        ("mxfp4", "Triton", "9.0", "0.33.0", "", "flashinfer_cutlass humming marlin"),
        # Humming is to be asked for there, which promises nothing.
        ("mxfp4", "Triton", "9.0", "0.26.0", "", "flashinfer_cutlass marlin humming"),
        (
            "nvfp4",
            "Marlin",
            "12.1",
            "0.33.0",
            "flashinfer_cutlass cutlass",
            "humming flashinfer_b12x b12x",
        ),
    ],
)
def test_what_is_proposed_comes_first_in_vllms_order(
    stored: str, family: str, capability: str, vllm: str, values: str, later: str,
    reports: dict[str, Report],
) -> None:  # fmt: skip
    others = other_backends(ran(reports[stored], family, capability, vllm), "experts")
    assert others is not None
    assert others.complete
    assert (others.values, others.later) == (tuple(values.split()), tuple(later.split()))


def test_no_kernel_is_said_to_be_missing_where_vllm_has_one(reports: dict[str, Report]) -> None:
    hopper = other_backends(ran(reports["nvfp4"], "Marlin", "9.0", "0.33.0"), "experts")
    assert hopper is not None
    assert advice(hopper).startswith(
        "Try --moe-backend=humming, which vLLM has for nvfp4 weights on compute capability 9.0"
    )
    stock = other_backends(ran(reports["nvfp4"], "Humming", "9.0", "0.33.0"), "experts")
    assert stock is not None
    text = advice(stock)
    assert "No other --moe-backend" not in text
    assert "vLLM tries no other kernel before the one that runs nvfp4 weights" in text
    assert text.endswith("spark-prof ab --b=--moe-backend=marlin would tell.")


def test_a_package_that_vllm_does_not_bring_is_named() -> None:
    found = OtherBackends("--moe-backend", "nvfp4", "12.1", ("b12x",), True, (), ("b12x",))
    assert "it needs b12x, which vLLM does not bring" in advice(found)


def test_a_vllm_that_was_not_read_gets_no_advice(reports: dict[str, Report]) -> None:
    for vllm in ("0.34.0", "0.23.0", ""):
        others = other_backends(ran(reports["nvfp4"], "Marlin", "9.0", vllm), "experts")
        assert others is not None
        assert not others.complete
        assert "is not known" in advice(others)


def test_the_kernel_of_the_trace_tells_what_ran(reports: dict[str, Report]) -> None:
    report = ran(reports["nvfp4"], "Marlin", "9.0", "0.33.0")
    silent = replace(report, audit=None)
    others = other_backends(silent, "experts", HUMMING)
    assert others is not None
    assert "humming" not in (*others.values, *others.later)
