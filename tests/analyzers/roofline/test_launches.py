"""Which kernel is charged with which work."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from spark_prof.analyzers.roofline.launches import (
    BY_ORDER,
    BY_TIME,
    LONGEST,
    ONLY,
    Launch,
    charges_of,
)
from spark_prof.analyzers.roofline.needs import Work, attention, reading
from spark_prof.analyzers.roofline.shape import Shape
from spark_prof.analyzers.roofline.weights import Weights

GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
OTHER = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1"
SMALL = "triton_red_fused_fused_add_rms_norm_0"
FLASH = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>(P)"


def product(component: str, layer: int, what: str, order: int = 0) -> Work:
    return reading(Weights(component, layer, what, 100, 50, False, "bfloat16", False, order))


def test_two_products_of_a_layer_go_to_its_two_kernels_in_order() -> None:
    works = [product("experts", 3, "w2", 1), product("experts", 3, "w13")]
    ran = [Launch(GEMM, "experts", 3, 5), Launch(SMALL, "experts", 3, 90),
           Launch(OTHER, "experts", 3, 7)]  # fmt: skip
    found = {charge.name: charge for charge in charges_of(ran, works)}
    assert found[GEMM].work.what == "w13"
    assert found[OTHER].work.what == "w2"
    assert {charge.basis for charge in found.values()} == {BY_ORDER}


def test_one_kernel_does_everything() -> None:
    works = [product("qkv", 0, name) for name in ("q_a", "q_b", "kv_a")]
    found = charges_of([Launch(GEMM, "qkv", 0, 5), Launch(SMALL, "qkv", 0, 9)], works)
    assert [(c.name, c.share, c.basis) for c in found] == [(GEMM, 1.0, ONLY)] * 3


def test_what_order_cannot_tell_is_split_by_time() -> None:
    works = [product("mlp", 0, "gate_up"), product("mlp", 0, "down", 1)]
    ran = [Launch(GEMM, "mlp", 0, 1), Launch(GEMM, "mlp", 0, 2), Launch(OTHER, "mlp", 0, 3)]
    found = charges_of(ran, works)
    assert {charge.basis for charge in found} == {BY_TIME}
    by_name: dict[str, float] = defaultdict(float)
    for charge in found:
        by_name[charge.name] += charge.share
    assert by_name == pytest.approx({GEMM: 1.0, OTHER: 1.0})


def test_without_a_known_product_the_longest_kernel_does_it() -> None:
    ran = [Launch("a", "o_proj", 0, 5), Launch("b", "o_proj", 0, 50)]
    (charge,) = charges_of(ran, [product("o_proj", 0, "o_proj")])
    assert (charge.name, charge.basis) == ("b", LONGEST)


def test_the_cache_is_read_by_attention_s_longest_kernel() -> None:
    shape = Shape(kv_heads=1, head_dim=64)
    read, write = attention(0, shape)
    ran = [Launch(FLASH, "attention", 0, 50), Launch(GEMM, "attention", 0, 90),
           Launch("reshape", "kv_write", 0, 2)]  # fmt: skip
    found = {charge.work.kind: charge.name for charge in charges_of(ran, [read, write])}
    assert found == {"attention": FLASH, "kv_write": "reshape"}


def test_kernels_without_a_layer_take_the_work_of_all() -> None:
    works = [product("qkv", layer, f"layer {layer}") for layer in range(3)]
    ran = [Launch(GEMM, "qkv", -1, 5) for _ in range(3)]
    found = charges_of(ran, works)
    assert [charge.work.what for charge in found] == ["layer 0", "layer 1", "layer 2"]
    assert {charge.basis for charge in found} == {BY_ORDER}


def test_work_that_nobody_does_is_charged_to_nobody() -> None:
    assert charges_of([Launch(GEMM, "qkv", 0, 5)], [product("lm_head", -1, "lm_head")]) == []


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_each_piece_of_work_add_up_to_one_or_none(seed: int) -> None:
    rng = random.Random(seed)
    places = [(component, layer) for component in ("qkv", "mlp", "norm") for layer in (-1, 0, 1)]
    ran = [
        Launch(rng.choice([GEMM, OTHER, SMALL, "x"]), *rng.choice(places), rng.choice([0, 1, 9]))
        for _ in range(rng.randrange(12))
    ]
    works = [product(*rng.choice(places), str(i)) for i in range(rng.randrange(9))]
    sums: dict[int, float] = defaultdict(float)
    for charge in charges_of(ran, works):
        assert 0 <= charge.share <= 1
        sums[id(charge.work)] += charge.share
    there = {(launch.component, launch.layer) for launch in ran}
    for work in works:
        done = (work.component, work.layer) in there or (work.component, -1) in there
        assert sums.get(id(work), 0.0) == pytest.approx(1.0 if done else 0.0)


def test_many_kernels_of_one_name_share_once() -> None:
    works = [product("qkv", layer, str(layer)) for layer in range(40)]
    ran = [Launch(GEMM, "qkv", -1, 3) for _ in range(20_000)]
    found = charges_of(ran, works)
    assert [(charge.share, charge.basis) for charge in found] == [(1.0, BY_TIME)] * 40
