"""Findings about conversions and lm_head: what fires each of them, and what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.conversions.conversion_rows import (
    AttributedConversion,
    RepeatedQuantization,
)
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import RULES
from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
)
from tests.dashboards.sample import SAMPLES
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
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
    conversions = replace(SAMPLE.conversions, attributed=rows)
    execution = execution or "torch.compile, CUDA graphs"
    run = replace(SAMPLE.run, vllm=vllm, execution=execution, command="vllm serve m")
    return replace(SAMPLE, conversions=conversions, run=run, audit=None)


def repeated(extra_us: float) -> Report:
    """A run in which q, k and v each have their input quantized."""
    row = RepeatedQuantization("scaled_fp8_quant", ("qkv",), 6, 4, extra_us, 17)
    return replace(SAMPLE, conversions=replace(SAMPLE.conversions, repeated=(row,)))


def found(subject: Report, page: str = "conversions", begins: str = "") -> dict[str, Finding]:
    """What the rules about conversions say, by id."""
    rules = [rule for rule in RULES if rule.page == page and rule.id.startswith(begins)]
    return {finding.id: finding for rule in rules for finding in rule.find(subject)}


@each_row(
    ("rule", "kind", "component"),
    [
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
    ],
)
def test_a_large_share_fires_one_rule_and_a_small_one_none(
    rule: str, kind: str, component: str
) -> None:
    findings = found(report(conversion(kind, component, 0.04)))
    assert list(findings) == [rule]
    finding = findings[rule]
    # What it should bring is its time, in each token.
    assert finding.ms_per_token == pytest.approx(0.04 * STEP_US / 1e3, rel=0.02)
    assert component in finding.text
    assert "4.0 %" in finding.text
    assert finding.fix
    assert GEMM in " ".join(finding.evidence)
    assert rule not in found(report(conversion(kind, component, 0.003)))


QUANTIZED, CAST = conversion("quantize", "mlp", 0.05), conversion("cast", "norm", 0.05)
SEVERAL = [conversion("quantize", name, 0.006) for name in ("qkv", "mlp")]


@each_row(
    ("subject", "text", "fix"),
    [
        (report(*SEVERAL), "qkv, mlp", ""),
        (report(QUANTIZED, vllm="0.12.0"), "", "enable_fusion"),
        (report(QUANTIZED, vllm="0.13.0"), "", "fuse_norm_quant"),
        (report(QUANTIZED, vllm="0.26.0"), "", "fuse_act_quant"),
        (report(QUANTIZED, vllm=""), "", "before vLLM 0.13: enable_fusion"),
        # Fusions need torch.compile.
        (
            report(QUANTIZED, execution="eager"),
            "",
            "Leave out --enforce-eager (torch.compile fuses)",
        ),
        (report(CAST, execution="eager"), "", "--enforce-eager"),
        (report(CAST, execution="torch.compile"), "", "!--enforce-eager"),
    ],
)
def test_one_finding_and_its_advice(subject: Report, text: str, fix: str) -> None:
    (finding,) = found(subject).values()
    assert text in finding.text
    assert (fix[1:] not in finding.fix) if fix.startswith("!") else (fix in finding.fix)


@each_row(
    "quiet",
    [
        report(replace(QUANTIZED, decode_us=0.0, prefill_us=QUANTIZED.us)),  # prefill alone
        report(conversion("cast", "lm_head", 0.05)),  # another rule's
        report(conversion("permute", "lm_head", 0.05)),  # no rule's
        repeated(0.001 * STEP_US),
    ],
)
def test_quiet(quiet: Report) -> None:
    assert not found(quiet)


@pytest.mark.slow
@each_row("name", SAMPLES)
def test_nothing_is_said_where_nothing_is_converted(name: str) -> None:
    sample = SAMPLES[name]
    bare = replace(sample.conversions, attributed=(), repeated=())
    assert not found(replace(sample, conversions=bare))


def test_quantized_once_per_consumer() -> None:
    finding = found(repeated(0.02 * STEP_US))["quantized-once-per-consumer"]
    assert finding.ms_per_token == pytest.approx(0.02 * STEP_US / 1e3, rel=0.02)
    assert "4 of 6" in finding.text
    assert "step 17" in finding.evidence[0]


@each_row("count", [1, 3, 4, 6])
def test_of_kernels_that_repeat_three_are_named(count: int) -> None:
    (row,) = repeated(0.02 * STEP_US).conversions.repeated
    names = [f"quantize_{number}" for number in range(count)]
    rows = tuple(replace(row, name=name) for name in names)
    subject = replace(SAMPLE, conversions=replace(SAMPLE.conversions, repeated=rows))
    finding = found(subject)["quantized-once-per-consumer"]
    assert [kernel.name for kernel in finding.kernels] == names[:3]
    assert [name for name in names if name in finding.text] == names[:3]
    assert f"{4 * count} of {6 * count}" in finding.text
    assert finding.ms_per_token == pytest.approx(count * 0.02 * STEP_US / 1e3, rel=0.02)


SGEMM = "volta_sgemm_128x32_nt"


def of_head(subject: Report) -> dict[str, Finding]:
    return found(subject, "kernels", "lm-head")


def head(
    share: float, precision: str, stored: str, layers: str, cast: float = 0.0, name: str = GEMM
) -> dict[str, Finding]:
    """What is said of an lm_head whose product has that share of a step, beside such experts."""
    us = share * STEP_US * SAMPLE.steps.decode
    kernel = KernelRow(name, SAMPLE.steps.count, us, share, "lm_head", "tensor-core", precision,
                       "name", None, decode_us=us,
                       decode_us_per_step=us / SAMPLE.steps.decode)  # fmt: skip
    modules = (
        ModuleRow("experts", "FusedMoE", "", "", layers, "", 24, 10_000_000_000),
        ModuleRow("lm_head", "ParallelLMHead", "", "", stored, "201088x2880", 1, 1_158_266_880),
    )
    casts = (conversion("cast", "lm_head", cast),) if cast else ()
    return of_head(replace(report(*casts), kernels=(kernel,), modules=modules))


def with_drafter(stored: str, own: str | None) -> list[Finding]:
    """What is said of a head, where a drafter's products with one take as long as the model's."""
    us = 0.2 * STEP_US * SAMPLE.steps.decode
    kernel = KernelRow(GEMM, SAMPLE.steps.count, us, 0.2, "lm_head", "tensor-core", "bf16", "name",
                       None, decode_us=us, decode_us_per_step=0.2 * STEP_US)  # fmt: skip
    head = ModuleRow("lm_head", "ParallelLMHead", "", "", stored, "", 1, 1_158_266_880)
    modules = [ModuleRow("experts", "FusedMoE", "", "", "uint8", "", 24, 10_000_000_000), head]
    if own is not None:
        form = "" if own == "bfloat16" else "nvfp4"
        modules.append(
            replace(head, weight_dtype=own, part="drafter", format=form, bytes=500_000_000)
        )
    row = RooflineRow(
        GEMM, "lm_head", 1.0, 0.1 * STEP_US, None, 0.0, 0.0, "", "", False, None, None, None, None,
        None, None, None, role="drafter.lm_head",
    )  # fmt: skip
    phase = RooflinePhase("decode", 1, 1.0, STEP_US, STEP_US, 0.0, None, 0.0, 0.0, 0.0, (row,))
    subject = replace(report(), kernels=(kernel,), modules=tuple(modules),
                      roofline=Roofline(Ceilings(""), (phase,), ()))  # fmt: skip
    rules = [rule for rule in RULES if rule.id == "lm-head-not-quantized"]
    return [finding for rule in rules for finding in rule.find(subject)]


def test_each_head_counts_by_itself_and_the_drafters_is_named() -> None:
    saves = 1 - 4.5 / 16
    # One head for both: a narrow one serves the drafter's passes as well.
    (shared,) = with_drafter("bfloat16", None)
    assert shared.ms_per_token == pytest.approx(0.2 * saves * STEP_US / 1e3, rel=0.02)
    assert any("draft_lm_head_quantization" in line for line in shared.evidence)
    # Two of them in 16 bits.
    ours, theirs = with_drafter("bfloat16", "bfloat16")
    for finding, size in ((ours, "1.16 GB"), (theirs, "0.50 GB")):
        assert size in finding.text
        assert finding.ms_per_token == pytest.approx(0.1 * saves * STEP_US / 1e3, rel=0.02)
    assert theirs.text.startswith("The drafter's own lm_head is bfloat16")
    # A copy that is quantized for the drafter alone, and a model's head that is quantized.
    (ours,) = with_drafter("bfloat16", "uint8")
    assert ours.text.startswith("lm_head is bfloat16")
    (theirs,) = with_drafter("float8_e4m3fn", "bfloat16")
    assert theirs.text.startswith("The drafter's own lm_head")


@each_row(
    ("given", "rule", "share"),
    [
        # NVFP4 has 4.5 bits in place of 16.
        ((0.1, "bf16", "bfloat16", "uint8"), "lm-head-not-quantized", 0.1 * (1 - 4.5 / 16)),
        ((0.1, "bf16", "bfloat16", "bfloat16"), None, 0),  # nothing is quantized
        ((0.1, "bf16", "float8_e4m3fn", "uint8"), None, 0),  # lm_head is quantized
        ((0.005, "bf16", "bfloat16", "uint8"), None, 0),  # lm_head costs little
        ((0.2, "tf32", "float32", "uint8"), "lm-head-widened", 0.1),
        ((0.1, "fp32", "bfloat16", "bfloat16", 0.0, SGEMM), "lm-head-widened", 0.05),
        ((0.1, "bf16", "bfloat16", "bfloat16", 0.03), "lm-head-widened", 0.03),
        ((0.1, "bf16", "bfloat16", "bfloat16", 0.001), None, 0),  # a small cast
        ((0.1, "fp32", "float32", "float32", 0.0, SGEMM), None, 0),  # the whole model is FP32
    ],
)
def test_lm_head(given: tuple[float, str, str, str], rule: str | None, share: float) -> None:
    findings = head(*given)
    assert list(findings) == ([rule] if rule else [])
    for finding in findings.values():
        assert finding.ms_per_token == pytest.approx(share * STEP_US / 1e3, rel=0.02)
        assert rule != "lm-head-not-quantized" or "1.16 GB" in finding.text


@each_row(("other", "fires"), [("bfloat16", True), ("float8_e4m3fn", False)])
def test_of_two_heads_no_one_may_be_quantized(other: str, fires: bool) -> None:
    us = 0.1 * STEP_US * SAMPLE.steps.decode
    kernel = KernelRow(GEMM, SAMPLE.steps.count, us, 0.1, "lm_head", "tensor-core", "bf16", "name",
                       None, decode_us=us, decode_us_per_step=0.1 * STEP_US)  # fmt: skip
    modules = (
        ModuleRow("experts", "FusedMoE", "", "", "uint8", "", 24, 10_000_000_000),
        *(ModuleRow("lm_head", "ParallelLMHead", "", "", dtype, "201088x2880", 1, 1_158_266_880)
          for dtype in ("bfloat16", other)),
    )  # fmt: skip
    given = replace(report(), kernels=(kernel,), modules=modules)
    assert ("lm-head-not-quantized" in of_head(given)) is fires
