"""Alignment of kernel sequences."""

import numpy as np

from spark_prof.importers.alignment import align
from tests.rows import each_row


def test_the_same_sequence_aligns_with_itself():
    names = ["a_kernel", "b_kernel", "a_kernel", "c_kernel"] * 5
    assert align(names, names).tolist() == list(range(20))


@each_row("seed", range(10))
def test_what_was_left_out_has_no_partner_and_the_rest_has_its_own(seed):
    random = np.random.default_rng(seed)
    names = [f"kernel_{chr(97 + i)}" for i in random.integers(0, 26, 120)]
    kept = np.sort(random.choice(120, 90, replace=False))
    partner = align([names[i] for i in kept], names)
    assert (partner >= 0).all()
    assert (np.diff(partner) > 0).all()
    assert [names[i] for i in partner] == [names[i] for i in kept]


def test_products_of_other_tile_sizes_are_partners():
    eager = ["nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT", "_topk_forward"]
    graph = ["nvjet_sm90_tst_512x8_64x3_2x1_v_bz_TNT", "_topk_forward"]
    assert align(graph, eager).tolist() == [0, 1]


def test_what_a_compiler_fused_stands_for_a_norm():
    eager = ["void vllm::rms_norm_kernel<c10::BFloat16>(int)", "_topk_forward"]
    assert align(["triton_red_fused_fused_add_rms_norm_0", "_topk_forward"], eager).tolist() == [
        0,
        1,
    ]


def test_what_adds_up_a_split_product_is_no_product():
    product = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
    rest = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"
    assert align([product, rest, product], [product, product]).tolist() == [0, -1, 1]
    assert align([product, rest], [product, rest]).tolist() == [0, 1]


def test_kernels_with_nothing_in_common_never_match():
    assert align(["_topk_forward"], ["void vllm::rms_norm_kernel<float>(int)"]).tolist() == [-1]
    assert align([], ["a"]).tolist() == []
    assert align(["a"], []).tolist() == [-1]
