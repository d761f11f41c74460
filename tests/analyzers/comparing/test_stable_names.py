"""What is left of names when the same model is compiled again."""

from __future__ import annotations

import pytest

from spark_prof.analyzers.comparing.kernel_time import CHANGING, Changing, stable_name
from tests.rows import each_row


@each_row("row", CHANGING)
def test_each_rule_takes_its_part_out(row: Changing) -> None:
    assert stable_name(row.example) == row.stable


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("triton_poi_fused_mul_silu_3", "triton_poi_fused_mul_silu_11"),
        ("void marlin::Marlin<1l, 2l>(int4 const*)", "void Marlin<1, 2>(int4*)"),
        ("kernel_cutlass_gemm_9f86d081884c7d65", "kernel_cutlass_gemm_60303ae22b998861"),
    ],
)
def test_the_same_kernel_has_one_name(one: str, other: str) -> None:
    assert stable_name(one) == stable_name(other)


@each_row(
    ("one", "other"),
    [
        ("triton_poi_fused_mul_3", "triton_poi_fused_add_3"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x8_64x16_2x1_v_bz_TNT"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "_matmul_ogs_NNT_bf16xbf16xmxfp4_32x128"),
        ("kernel_unified_attention_2d", "kernel_unified_attention_3d"),
        ("void Marlin<1, 2>(int4*)", "void Marlin<1, 3>(int4*)"),
    ],
)
def test_other_kernels_stay_apart(one: str, other: str) -> None:
    assert stable_name(one) != stable_name(other)


def test_hostile_names_are_bounded() -> None:
    for name in ("a_" * 500_000, "triton_poi_fused" + "_1" * 300_000, "x_" + "0d" * 300_000, ""):
        assert len(stable_name(name)) <= 8192
