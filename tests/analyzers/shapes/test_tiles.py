"""Tiles out of names: every family's example, real names of recordings, and hostile ones.

Tiles of symbols that libstdc++ gives no name: real ones, cut ones and hostile ones.
"""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path

import pandas as pd
import pytest

from spark_prof.analyzers.shapes.tiles import FAMILIES, Family, tile_of
from spark_prof.traces.bundle import Bundle
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"


@each_row("family", FAMILIES)
def test_the_example_of_a_family(family: Family) -> None:
    found = tile_of(family.example)
    assert found is not None
    assert found.family == family.name
    assert (found.first, found.second, found.depth, found.token_rows) == family.tile
    assert family.evidence


@each_row(
    ("name", "sides", "rows"),
    [
        ("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT", (192, 208), 208),
        ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT", (64, 16), 16),
        ("nvjet_sm120_tst_mma_256x112x64_2_64x56x64_tmaAB_bz_TNNN", (256, 112), None),
        ("nvjet_sm120_sss_tf32_mma_32x64x32_2_x", (32, 64), None),
        ("nvjet_sm120_qqtst_mma_128x128x64_6_64x64x64_tmaAB_bz_TNNN", (128, 128), 128),
        ("_p_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128", (16, 256), 16),
        ("FmhaSm100aKernel_QE4m3KvE2m1OE4m3H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext",
         (128, 128), None),
        ("void cutlass::device_kernel<(anonymous namespace)::cutlass_3x_group_gemm<cutlass::"
         "float_e4m3_t, cutlass::bfloat16_t, cutlass::arch::Sm100, vllm::c3x::ScaledEpilogueArray, "
         "cute::tuple<cute::C<128>, cute::C<16>, cute::C<128> >, cute::tuple<cute::C<1>, "
         "cute::C<1>, cute::C<1> >, cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmSm100, "
         "cutlass::epilogue::PtrArrayTmaWarpSpecialized1Sm, true>::GemmKernel>()", (128, 16), 16),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>"
         "(cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2::Params)", (256, 128),
         None),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>()",
         (128, 128), 128),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_"
         "aligna4_alignc4_execute_kernel__5x_cublas", (64, 256), None),
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn", (64, 64), 64),
        ("Marlin<__half, 1125899906842635l, 256, 4, 16, 4, false, 4, 8, false>(int)", (64, 256),
         64),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4,"
         " (bool)0>>(flash::Flash_fwd_params)", (128, 64), None),
    ],
)  # fmt: skip
def test_real_names(name: str, sides: tuple[int, int], rows: int | None) -> None:
    found = tile_of(name)
    assert found is not None
    assert ((found.first, found.second), found.token_rows) == (sides, rows)


@each_row(
    "name",
    ["", "gemm", "nvjet_", "void at::native::elementwise_kernel<128, 4>", "Marlin<", "tile_64x64",
     "_matmul_ogs_NNT_bf16xbf16xmxfp4_0x256x128x1", "nvjet_tst_99999x99999_64x4_1x1_TNT",
     "triton_red_fused_fused_add_rms_norm_marlin_gemm_1",
     "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"],
)  # fmt: skip
def test_names_that_tell_no_tile(name: str) -> None:
    assert tile_of(name) is None


PIECES = (
    "nvjet_", "tst_", "64x8_", "Marlin<", "1,", "128,", "tuple<C<", "CollectiveEpilogue<", "Sm90",
    "_t128x16x256", "bmm_", "a", "_", "<", ">", "C<1>,long,", "(", "\x00",
    "CollectiveEpilogue<Sm90a<1>,tuple<C<1>,C<1>,C<1>>,",
)  # fmt: skip


def test_a_tile_of_noise_has_sides_that_a_tile_can_have() -> None:
    rng = random.Random(1)
    for _ in range(300):
        found = tile_of("".join(rng.choices(PIECES, k=rng.randint(1, 300))))
        if found:
            assert 0 < found.first <= 1 << 14
            assert 0 < found.second <= 1 << 14
            assert found.token_rows in (None, found.first, found.second)


@pytest.mark.parametrize(
    "capture", ["h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs"]
)
def test_the_side_of_the_tokens_agrees_with_the_grids_of_a_recording(capture: str) -> None:
    """The other side, times the blocks, must cover the features of a product, and just so.

    qkv of gpt-oss-20b has 5,120 features, o_proj 2,880, w13 of the experts 5,760 and w2 2,880 for
    each of 4 experts. A block more than that is one that split the inner dimension or filled a
    cluster.
    """
    bundle = Bundle(DATA / capture)
    kernels = bundle.frame("kernels", 0, ["name", "grid", "step"])
    steps = bundle.frame("steps", 0)
    decode = steps.loc[steps["phase"] == "decode", "step"]
    features = {"_swiglu": 4 * 5760, "128x1": 4 * 2880, "4x1_v_bz_bias": 5120}
    for ending, wanted in features.items():
        name, grid = _one(kernels[kernels["step"].isin(decode)], ending)
        found = tile_of(name)
        assert found is not None
        assert found.token_rows is not None
        other = found.second if found.token_rows == found.first else found.first
        blocks = 1
        for side in re.findall(r"\d+", grid):
            blocks *= int(side)
        tiles = -(-wanted // (4 * other)) * 4 if "4x1" not in ending else -(-wanted // other)
        assert tiles <= blocks * 1.1
        assert blocks <= tiles * 1.1


def _one(kernels: pd.DataFrame, ending: str) -> tuple[str, str]:
    """The name and grid of the only product whose name has that in it."""
    rows = kernels[["name", "grid"]].astype(str).drop_duplicates()
    mine = rows[rows["name"].str.contains("matmul_ogs|nvjet") & rows["name"].str.contains(ending)]
    if ending == "128x1":
        mine = mine[mine["name"].str.endswith("128x1")]
    assert len(mine) == 1
    return str(mine["name"].iloc[0]), str(mine["grid"].iloc[0])


with open(Path(__file__).with_name("symbols.csv"), encoding="utf-8") as _file:
    SYMBOLS = [tuple(row.values()) for row in csv.DictReader(_file)]

LONGEST = max((row[0] for row in SYMBOLS), key=len)


@each_row("row", SYMBOLS)
def test_the_tile_of_a_symbol(row: tuple[str, ...]) -> None:
    symbol, *numbers = row
    found = tile_of(symbol)
    assert found is not None
    assert [found.first, found.second, found.depth, found.token_rows] == list(map(int, numbers))


def test_every_cut_is_unreadable_or_says_no_more() -> None:
    whole = tile_of(LONGEST)
    assert {tile_of(LONGEST[:length]) for length in range(0, len(LONGEST), 7)} <= {None, whole}


@each_row(
    "symbol",
    ["_Z", "_ZN", "_Z1", "_Z9999x", "_ZS_", "_ZSZZZZ_", "_Z1fI" + "J" * 9000, "_Z1fI" + "P" * 9000,
     "_Z1fI" + "N1aI" * 4000, "_Z1f" + "IiE" * 9000, "_Z1fI" + "i" * 90_000 + "E",
     "_Z1fILi" + "9" * 5000 + "EE", "_Z1fI" + "1aI" * 4000, "_ZN" + "1a" * 9000],
)  # fmt: skip
def test_hostile_symbols(symbol: str) -> None:
    assert tile_of(symbol) is None
    assert tile_of(symbol + "E") is None


def test_what_refers_to_itself_many_times_is_not_expanded() -> None:
    # Each template holds the one before twice: 2 to the power of 36, written out.
    parts = [f"1bIS{number}_S{number}_E" for number in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    assert tile_of("_Z1fI1aIiE" + "".join(parts) + "Ev") is None
