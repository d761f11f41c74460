"""Findings about conversions: what fires each of them, and what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.conversions.conversion_rows import (
    AttributedConversion,
    RepeatedQuantization,
)
from spark_prof.analyzers.findings.format_conversions import CONVERSIONS
from spark_prof.analyzers.model import Finding, Report
from tests.dashboards.sample import SAMPLES
from tests.rows import each_row

SAMPLE = SAMPLES["mixture_of_experts"]
assert SAMPLE.steps.decode_us is not None
STEP_US = SAMPLE.steps.decode_us.median

GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"


def conversion(kind: str, component: str, share: float) -> AttributedConversion:
    """A conversion that takes that share of each decode step."""
    us = share * STEP_US * SAMPLE.steps.decode
    return AttributedConversion(
        kind=kind, name=f"{kind}_kernel", component=component, consumer=GEMM, gemm=True,
        after="norm", layers=2, calls=2 * SAMPLE.steps.count, us=us, prefill_us=0.0, decode_us=us,
        decode_calls=2 * SAMPLE.steps.decode, calls_per_step=2.0, us_per_token=share * STEP_US,
    )  # fmt: skip


def report(*rows: AttributedConversion, execution: str = "", vllm: str = "0.26.0") -> Report:
    """The sample with these conversions and no others."""
    conversions = replace(SAMPLE.conversions, charged=rows)
    run = replace(SAMPLE.run, vllm=vllm, execution=execution or SAMPLE.run.execution)
    return replace(SAMPLE, conversions=conversions, run=run)


def found(subject: Report) -> dict[str, Finding]:
    """What the rules say, by id."""
    return {finding.id: finding for rule in CONVERSIONS for finding in rule.find(subject)}


CASES = [
    ("activations-quantized-apart", "quantize", "mlp"),
    ("expert-inputs-quantized-apart", "quantize", "experts"),
    ("kv-cache-converted-apart", "quantize", "attention"),
    ("kv-cache-converted-apart", "dequantize", "kv_write"),
    ("weights-dequantized", "dequantize", "mlp"),
    ("scales-swizzled", "swizzle", "experts"),
    ("padding-around-products", "pad", "experts"),
    ("transposed-in-decode", "transpose", "qkv"),
    ("casts-in-decode", "cast", "norm"),
    ("repacked-in-decode", "repack", "o_proj"),
]


@each_row(("rule", "kind", "component"), CASES)
def test_a_large_share_fires_one_rule(rule: str, kind: str, component: str) -> None:
    findings = found(report(conversion(kind, component, 0.04)))
    assert list(findings) == [rule]
    finding = findings[rule]
    # What it should bring is its time, in each token.
    assert finding.ms_per_token == pytest.approx(0.04 * STEP_US / 1e3, rel=0.02)
    assert component in finding.text
    assert "4.0%" in finding.text
    assert finding.fix
    assert GEMM in " ".join(finding.evidence)


@each_row(("rule", "kind", "component"), CASES)
def test_a_small_share_fires_none(rule: str, kind: str, component: str) -> None:
    assert rule not in found(report(conversion(kind, component, 0.003)))


def test_several_kernels_are_one_finding() -> None:
    parts = [conversion("quantize", name, 0.006) for name in ("qkv", "mlp")]
    (finding,) = found(report(*parts)).values()
    assert "qkv, mlp" in finding.text


def test_prefill_alone_fires_nothing() -> None:
    row = conversion("quantize", "mlp", 0.5)
    assert not found(report(replace(row, decode_us=0.0, prefill_us=row.us)))


@pytest.mark.parametrize("kind", ["cast", "permute"])
def test_what_other_rules_or_no_rule_are_for(kind: str) -> None:
    assert not found(report(conversion(kind, "lm_head", 0.05)))


@each_row(
    ("vllm", "flag"), [("0.12.0", "enable_fusion"), ("0.13.0", "fuse_norm_quant"),
                       ("0.26.0", "fuse_act_quant"), ("", "before vLLM 0.13: enable_fusion")],
)  # fmt: skip
def test_the_flag_is_that_of_the_version(vllm: str, flag: str) -> None:
    (finding,) = found(report(conversion("quantize", "mlp", 0.05), vllm=vllm)).values()
    assert flag in finding.fix


def test_fusions_need_torch_compile() -> None:
    (finding,) = found(report(conversion("quantize", "mlp", 0.05), execution="eager")).values()
    assert finding.fix.startswith("Leave --enforce-eager out")


@pytest.mark.parametrize(("execution", "said"), [("eager", True), ("torch.compile", False)])
def test_what_torch_compile_would_do(execution: str, said: bool) -> None:
    (finding,) = found(report(conversion("cast", "norm", 0.05), execution=execution)).values()
    assert ("--enforce-eager" in finding.fix) is said


def repeated(extra_us: float) -> Report:
    """A run in which q, k and v each have their input quantized."""
    row = RepeatedQuantization("scaled_fp8_quant", ("qkv",), 6, 4, extra_us, 17)
    return replace(SAMPLE, conversions=replace(SAMPLE.conversions, repeated=(row,)))


def test_quantized_once_per_consumer() -> None:
    finding = found(repeated(0.02 * STEP_US))["quantized-once-per-consumer"]
    assert finding.ms_per_token == pytest.approx(0.02 * STEP_US / 1e3, rel=0.02)
    assert "4 of 6" in finding.text
    assert "step 17" in finding.evidence[0]


def test_quiet_where_repeating_costs_little() -> None:
    assert not found(repeated(0.001 * STEP_US))


@each_row("name", SAMPLES)
def test_quiet_without_conversions(name: str) -> None:
    assert not found(replace(SAMPLES[name], conversions=replace(
        SAMPLES[name].conversions, charged=(), repeated=()
    )))  # fmt: skip
