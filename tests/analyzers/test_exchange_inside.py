"""Products that exchange data between ranks in the same kernel: none has a bound that it misses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from spark_prof.analyzers.classify.classifier import (
    classify,
    collective_kind,
    exchange_inside,
    is_gemm,
)
from spark_prof.analyzers.ranks.rank_summary import hidden_in, remarks
from spark_prof.rules.collectives import KINDS
from spark_prof.rules.kernel_names import RULES
from tests.analyzers.reported import reported
from tests.analyzers.roofline import recorded

CUTE = "kernel_cutlass_kernel_vllm"
REDUCING = f"{CUTE}modelscommonopsgemm_rs_arSm100GemmRsArBF16_object_at__TiledMMA"


@pytest.mark.parametrize(
    ("name", "product", "inside", "kind"),
    [
        (REDUCING, True, "reduce_scatter", None),
        (f"{CUTE}boundarypublishing_gemmPublishingLowLatencyBlockscaledGemmKernel_object_at__",
         True, "all_reduce", None),
        ("kernel_cutlass_kernel_flashinfercute_dslgemm_allreduce_two_shotPersistentDenseGemm"
         "Kernel_object_at_", True, "all_reduce", None),
        ("void deep_gemm::sm100_fp8_fp4_mega_moe_impl<1u>(void*)", True, "all_to_all", None),
        # A norm that reduces first is a collective; so are FlashInfer's fused ones.
        (f"{CUTE}opscute_dslall_reduce_mhcAllReduceMHC_object_at__", False, None, "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(P)",
         False, None, "all_reduce"),
        ("void minimax_reduce_rms_kernel_lamport<__nv_bfloat16, 4>(int)", False, None,
         "all_reduce"),
        # A plain product and a plain collective.
        ("kernel_cutlass_kernel_b12x_libdense_gemmDenseGemmKernel_object_at__", True, None, None),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", True, None, None),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)", False, None, "all_reduce"),
    ],
)  # fmt: skip
def test_what_a_name_says(name: str, product: bool, inside: str | None, kind: str | None) -> None:
    assert (is_gemm(name), exchange_inside(name), collective_kind(name)) == (product, inside, kind)
    assert (classify(name).component == "collective") == (kind is not None)


def test_what_is_exchanged_has_a_known_word() -> None:
    kinds = {kind for kind, *_ in KINDS}
    assert {rule.exchanges for rule in RULES if rule.exchanges} <= kinds
    assert all(rule.gemm for rule in RULES if rule.exchanges)


def test_it_has_a_bound_but_misses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time holds waits; a plain product of the same time has a finding."""
    slow = (300.0, 3.0, 6.0, 4.0, 210.0)
    plain = reported(recorded.bundle(tmp_path / "plain", slow))
    assert any(f.id == "far-from-memory-floor" and "nvjet" in f.text for f in plain.findings)
    ran = tuple((REDUCING if n == recorded.GEMM else n, m) for n, m in recorded._RAN)
    monkeypatch.setattr(recorded, "_RAN", ran)
    report = reported(recorded.bundle(tmp_path / "exchanging", slow))
    (kernel,) = [row for row in report.kernels if row.name == REDUCING]
    assert (kernel.component, kernel.exchanges) == ("qkv", "reduce_scatter")
    assert {row.exchanges for row in report.kernels if row is not kernel} == {None}
    phase = report.decode_roofline
    assert phase is not None
    (row,) = [row for row in phase.rows if row.name == REDUCING]
    assert (row.limiter, row.left_us, row.bandwidth, row.of_reached) == ("exchange",) + (None,) * 3
    assert row.floor_us
    assert not any(f.id == "far-from-memory-floor" and "Rs" in f.text for f in report.findings)


def test_ranks_say_that_a_collective_in_a_product_is_not_seen() -> None:
    names = pd.Series(["nvjet", REDUCING], dtype="category")
    bundle: Any = SimpleNamespace(
        ranks=[0, 1], frame=lambda table, rank, columns: pd.DataFrame({"name": names})
    )
    hidden = hidden_in(bundle)
    assert len(hidden) == 1
    layout: Any = SimpleNamespace(missing=(), crosses_replicas=False, pipeline=1)
    (note,) = remarks(layout, (), (), 0, hidden)
    assert "in one kernel: their waits are no collective's" in note
    assert remarks(layout, (), (), 0) == ()
