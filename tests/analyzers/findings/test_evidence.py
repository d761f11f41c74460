"""Rules about machine code: each fires on its fault, and is quiet without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.breakdown import code_of, conflicts_of
from spark_prof.analyzers.classify.evidence import Evidence
from spark_prof.analyzers.classify.machine_code import code_row, opcode_counts
from spark_prof.analyzers.model import Report
from tests.analyzers.findings.reports import HEALTHY, MARLIN, NORM, STEPS, found, kernel
from tests.rows import each_row

QUANTIZE = "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*)"
FP8_GEMM = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas"
BF16_GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas"
SOFTWARE = "F2F.F64.F32 2\nBRA 13\nSTG 1"
NATIVE = "F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C 4\nSTG 1"
OTHER = "LOP3 36\nSTG 1"
MARLIN_CODE = "HMMA.16816.F32.BF16 64\nLOP3 200\nSTG 1"
EMULATED = "HMMA.16816.F32 2\nF2FP.F16.E4M3.UNPACK_B 12\nSTG 1"


def coded(
    name: str, opcodes: str, architecture: str = "sm_121", suffix: str = "plain", us: float = 5000.0
) -> Report:
    """The healthy report with one more kernel, 50 us of each step, whose code is known."""
    code = code_row(
        opcode_counts(opcodes), name=name, architecture=architecture, suffix=suffix,
        instructions=129, registers=40,
    )  # fmt: skip
    kernels = (*HEALTHY.kernels, kernel(name, "experts", us))
    evidence = Evidence(codes=[code])
    return replace(
        HEALTHY, kernels=kernels, machine_code=code_of(evidence, kernels),
        conflicts=conflicts_of(evidence, kernels),
    )  # fmt: skip


RULES = ("software-fp4-conversion", "plain-architecture-build", "emulated-fp8", "evidence-conflict")


@each_row("rule", RULES)
def test_a_healthy_run_is_quiet(rule: str) -> None:
    assert found(HEALTHY, rule) == []
    assert found(coded(NORM, "FFMA 9\nSTG 1"), rule) == []


def test_a_conversion_by_way_of_double_precision() -> None:
    (finding,) = found(coded(QUANTIZE, SOFTWARE), "software-fp4-conversion")
    assert finding.ms_per_token == pytest.approx(5000.0 / STEPS / 1e3)
    assert "F2F.F64.F32" in finding.text
    assert "(sm_121)" in finding.text
    assert "TORCH_CUDA_ARCH_LIST=12.0f" in finding.fix
    assert "129 instructions" in finding.evidence[0]


@each_row(
    ("name", "opcodes", "architecture"),
    [
        (QUANTIZE, NATIVE, "sm_121"), (QUANTIZE, OTHER, "sm_121"),
        # Hopper has no such instruction in any build.
        (QUANTIZE, SOFTWARE, "sm_90"), (QUANTIZE, SOFTWARE, ""), (NORM, SOFTWARE, "sm_121"),
        (MARLIN, SOFTWARE, "sm_121"),
    ],
)  # fmt: skip
def test_no_conversion_in_software(name: str, opcodes: str, architecture: str) -> None:
    assert found(coded(name, opcodes, architecture), "software-fp4-conversion") == []


@pytest.mark.parametrize("architecture", ["sm_100", "sm_120", "sm_121"])
def test_a_build_without_a_suffix(architecture: str) -> None:
    (finding,) = found(coded(QUANTIZE, OTHER, architecture), "plain-architecture-build")
    assert finding.ms_per_token == pytest.approx(5000.0 / STEPS / 1e3)
    assert f"({architecture})" in finding.text


@each_row(
    ("name", "opcodes", "architecture", "suffix"),
    [
        (QUANTIZE, OTHER, "sm_120", "f"), (QUANTIZE, OTHER, "sm_121", "a"),
        (QUANTIZE, OTHER, "sm_121", ""), (QUANTIZE, OTHER, "sm_90", "plain"),
        (QUANTIZE, NATIVE, "sm_120", "plain"), (QUANTIZE, SOFTWARE, "sm_120", "plain"),
        # It unpacks FP4 to BF16 by its design, on any architecture.
        (MARLIN, MARLIN_CODE, "sm_120", "plain"), (NORM, OTHER, "sm_120", "plain"),
    ],
)  # fmt: skip
def test_no_plain_build(name: str, opcodes: str, architecture: str, suffix: str) -> None:
    assert found(coded(name, opcodes, architecture, suffix), "plain-architecture-build") == []


def test_fp8_products_that_are_made_of_fp16_ones() -> None:
    report = coded(FP8_GEMM, EMULATED, "sm_90")
    (finding,) = found(report, "emulated-fp8")
    assert "mma.sync" in finding.text
    assert finding.ms_per_token is None
    assert found(report, "evidence-conflict") == []


@pytest.mark.parametrize(
    "opcodes", ["QGMMA.64x64x32.F32.E4M3.E4M3 9\nSTG 1", "HMMA.16816.F32 9\nSTG 1"]
)
def test_no_emulation(opcodes: str) -> None:
    assert found(coded(FP8_GEMM, opcodes, "sm_90"), "emulated-fp8") == []


def test_a_name_that_says_something_else() -> None:
    (finding,) = found(coded(BF16_GEMM, "FFMA 9\nSTG 1"), "evidence-conflict")
    assert "tensor-core bf16, its machine code cuda-core" in finding.text
    assert finding.ms_per_token is None
    many = [coded(f"{BF16_GEMM}{number}", "FFMA 9\nSTG 1") for number in range(5)]
    conflicts = tuple(row for report in many for row in report.conflicts)
    (finding,) = found(replace(many[0], conflicts=conflicts), "evidence-conflict")
    assert "and 2 more" in finding.text


def test_agreement_is_quiet() -> None:
    assert found(coded(BF16_GEMM, MARLIN_CODE), "evidence-conflict") == []
    assert found(coded(MARLIN, MARLIN_CODE), "evidence-conflict") == []
