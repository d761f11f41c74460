"""Findings about lm_head: what fires them, and what keeps them quiet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion
from spark_prof.analyzers.findings.lm_head import LM_HEAD
from spark_prof.analyzers.model import Finding, ModuleRow, Report
from spark_prof.analyzers.summary import summarize
from spark_prof.traces.bundle import Bundle
from tests.dashboards.sample import SAMPLES

DATA = Path(__file__).parents[2] / "data"
SAMPLE = SAMPLES["mixture_of_experts"]
assert SAMPLE.steps.decode_us is not None
STEP_US = SAMPLE.steps.decode_us.median
ALL_STEPS_US = STEP_US * SAMPLE.steps.decode
BF16_GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"


def product(share: float, precision: str = "bf16", name: str = BF16_GEMM) -> KernelRow:
    """lm_head's product, with that share of each decode step."""
    us = share * ALL_STEPS_US
    return KernelRow(
        name, SAMPLE.steps.count, us, share, "lm_head", "tensor-core", precision, "name", None,
        decode_us=us,
    )  # fmt: skip


def cast(share: float) -> AttributedConversion:
    """Casts for lm_head, with that share of each decode step."""
    us = share * ALL_STEPS_US
    return AttributedConversion(
        "cast", "direct_copy", "lm_head", BF16_GEMM, True, "norm", 0, SAMPLE.steps.count, us, 0.0,
        us, SAMPLE.steps.decode, 1.0, us / SAMPLE.steps.decode,
    )  # fmt: skip


def modules(head: str, layers: str) -> tuple[ModuleRow, ...]:
    """An lm_head and experts with weights of these types."""
    return (
        ModuleRow("experts", "FusedMoE", "", "", layers, "", 24, 10_000_000_000),
        ModuleRow("lm_head", "ParallelLMHead", "", "", head, "201088x2880", 1, 1_158_266_880),
    )


def found(
    kernel: KernelRow, weights: tuple[ModuleRow, ...], *casts: AttributedConversion
) -> dict[str, Finding]:
    """What the rules say, by id."""
    subject = replace(
        SAMPLE, kernels=(kernel,), modules=weights,
        conversions=replace(SAMPLE.conversions, charged=casts),
    )  # fmt: skip
    return of(subject)


def of(subject: Report) -> dict[str, Finding]:
    return {finding.id: finding for rule in LM_HEAD for finding in rule.find(subject)}


def test_bf16_beside_quantized_layers() -> None:
    (finding,) = found(product(0.1), modules("bfloat16", "uint8")).values()
    assert finding.id == "lm-head-not-quantized"
    # NVFP4 has 4.5 bits in place of 16.
    assert finding.ms_per_token == pytest.approx(0.1 * STEP_US * (1 - 4.5 / 16) / 1e3, rel=0.02)
    assert "1.16 GB" in finding.text


@pytest.mark.parametrize(
    ("head", "layers", "share"),
    [
        pytest.param("bfloat16", "bfloat16", 0.1, id="nothing is quantized"),
        pytest.param("float8_e4m3fn", "uint8", 0.1, id="lm_head is quantized"),
        pytest.param("bfloat16", "uint8", 0.005, id="lm_head costs little"),
    ],
)
def test_quiet(head: str, layers: str, share: float) -> None:
    assert not found(product(share), modules(head, layers))


def test_its_weights_are_fp32() -> None:
    findings = found(product(0.2, "tf32"), modules("float32", "uint8"))
    assert list(findings) == ["lm-head-widened"]
    assert findings["lm-head-widened"].ms_per_token == pytest.approx(0.1 * STEP_US / 1e3, rel=0.02)


def test_its_product_runs_in_fp32() -> None:
    sgemm = product(0.1, "fp32", "volta_sgemm_128x32_nt")
    assert "lm-head-widened" in found(sgemm, modules("bfloat16", "bfloat16"))


def test_it_is_cast() -> None:
    findings = found(product(0.1), modules("bfloat16", "bfloat16"), cast(0.03))
    assert findings["lm-head-widened"].ms_per_token == pytest.approx(0.03 * STEP_US / 1e3, rel=0.02)


@pytest.mark.parametrize(
    ("kernel", "weights", "share"),
    [
        pytest.param(product(0.1), modules("bfloat16", "bfloat16"), 0.001, id="a small cast"),
        pytest.param(product(0.1, "fp32", "volta_sgemm_128x32_nt"), modules("float32", "float32"),
         0.0, id="the whole model is FP32"),
    ],
)  # fmt: skip
def test_not_widened(kernel: KernelRow, weights: tuple[ModuleRow, ...], share: float) -> None:
    assert "lm-head-widened" not in found(kernel, weights, *([cast(share)] if share else []))


@pytest.mark.parametrize(
    ("capture", "fires"),
    [
        ("h100-gpt-oss-20b-mxfp4-graphs", True),
        ("h100-qwen3-30b-a3b-nvfp4-graphs", True),
        # Without CUDA graphs lm_head is a small part of a step that waits for the host.
        ("h100-gpt-oss-20b-mxfp4-eager", False),
    ],
)
def test_recordings(capture: str, fires: bool) -> None:
    report = summarize(Bundle(DATA / capture))
    finding = of(report).get("lm-head-not-quantized")
    assert (finding is not None) is fires
    if finding:
        # Both were recorded with random weights in BF16: what the rule says can be saved is less
        # than the product takes, and reading the weights cannot take longer than that.
        (us,) = (row.decode_us for row in report.kernels
                 if row.component == "lm_head" and row.engine == "tensor-core")  # fmt: skip
        assert finding.ms_per_token is not None
        assert 0 < finding.ms_per_token < us / report.steps.decode / 1e3
