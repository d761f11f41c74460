"""Every instant is charged once, to a kernel whose name stays, in steps of middle length."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spark_prof.analyzers.comparing.kernel_time import (
    charge,
    stable_name,
    typical_step,
)
from spark_prof.analyzers.step_accounting import union_by_group
from tests.rows import each_row


def charges(*spans: tuple[int, int]) -> list[tuple[int, int]]:
    """Busy and gap of each."""
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    found = charge(start, end)
    return list(zip(found.busy.tolist(), found.gap.tolist(), strict=True))


@each_row(
    ("spans", "wanted"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(5, 9)], [(4, 0)], id="one"),
        pytest.param([(0, 10), (12, 20)], [(10, 0), (8, 2)], id="a gap before the second"),
        pytest.param([(0, 10), (4, 25)], [(10, 0), (15, 0)], id="started early, then waited"),
        pytest.param([(0, 10), (2, 6)], [(10, 0), (0, 0)], id="one inside another"),
        pytest.param([(0, 10), (0, 10)], [(10, 0), (0, 0)], id="twins"),
        pytest.param([(0, 30), (5, 15), (20, 50), (60, 70)],
                     [(30, 0), (0, 0), (20, 0), (10, 10)], id="what runs elsewhere is no gap"),
        pytest.param([(0, 10), (15, 12), (20, 30)], [(10, 0), (0, 5), (10, 5)],
                     id="an end before its start"),
    ],
)  # fmt: skip
def test_the_charges_of(spans: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
    assert charges(*spans) == wanted


@each_row("seed", range(50))
def test_charges_add_up_to_the_span_and_gaps_to_what_is_idle(seed: int) -> None:
    chosen = random.Random(seed)
    longest = chosen.choice((1, 10, 200))
    start = np.sort([chosen.randrange(1000) for _ in range(chosen.randrange(1, 60))])
    end = start + np.array([chosen.randrange(longest + 1) for _ in start])
    found = charge(start, end)
    assert int((found.busy + found.gap).sum()) == int(end.max() - start.min())
    union = union_by_group(start, end, np.zeros(len(start), np.int64), 1)[0]
    assert int(found.busy.sum()) == int(union)
    assert ((found.busy >= 0) & (found.busy <= end - start)).all()
    assert (found.gap >= 0).all()


@each_row(
    ("length", "steps"),
    [
        ([5.0], [0]),
        ([5.0, 1.0, 9.0], [0, 1, 2]),
        ([5.0, 1.0, 9.0, 4.0], [0, 3]),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 600.0, 7.0, 8.0], [2, 3, 4, 6]),
    ],
)
def test_the_middle_of(length: list[float], steps: list[int]) -> None:
    assert typical_step(np.array(length)).steps.tolist() == steps


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_error_is_that_of_other_recordings(share: float) -> None:
    """The standard error of one recording, beside how far the means of many lie apart."""
    chance = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(300):
        part = chance.normal(10, share, 64)
        length = part + chance.normal(90, 1 - share, 64)
        middle = typical_step(length)
        means.append(middle.mean(part[None])[0])
        errors.append(middle.error(part[None])[0])
    assert np.median(errors) == pytest.approx(np.std(means), rel=0.25)


@each_row(
    ("name", "stable"),
    [
        ("triton_red_fused__to_copy_add_rms_norm_12", "triton_red_fused__to_copy_add_rms_norm"),
        ("cuda_fused_mm_0", "cuda_fused_mm"),
        ("fused_moe_kernel_0d1d2d3d4c5de6de7c", "fused_moe_kernel"),
        ("kernel_cutlass_gemm_9f86d081884c7d65", "kernel_cutlass_gemm"),
    ],
)
def test_what_a_compilation_adds_is_taken_out(name: str, stable: str) -> None:
    assert stable_name(name) == stable


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
        ("void marlin::Marlin<1, 2>(int4*)", "void marlin_moe_wna16::Marlin<1, 2>(int4*)"),
    ],
)
def test_other_kernels_stay_apart(one: str, other: str) -> None:
    assert stable_name(one) != stable_name(other)


def test_hostile_names_are_bounded() -> None:
    for name in ("a_" * 500_000, "triton_poi_fused" + "_1" * 300_000, "x_" + "0d" * 300_000, ""):
        assert len(stable_name(name)) <= 8192
