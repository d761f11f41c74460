"""Which kernel is charged with which work."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.roofline.launches import (
    BY_ORDER,
    BY_TENSOR,
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


def but(work: Work, **changes: Any) -> Work:
    """The same work on weights that differ in that."""
    assert work.weights is not None
    return reading(replace(work.weights, **changes))


def test_two_products_of_a_layer_go_to_its_two_kernels_in_order() -> None:
    works = [product("experts", 3, "w2", 1), product("experts", 3, "w13")]
    ran = [Launch(GEMM, "experts", 3, 5), Launch(SMALL, "experts", 3, 90),
           Launch(OTHER, "experts", 3, 7)]  # fmt: skip
    found = {charge.place.name: charge for charge in charges_of(ran, works)}
    assert found[GEMM].work.what == "w13"
    assert found[OTHER].work.what == "w2"
    assert {charge.basis for charge in found.values()} == {BY_ORDER}


def test_one_kernel_does_everything() -> None:
    works = [product("qkv", 0, name) for name in ("q_a", "q_b", "kv_a")]
    found = charges_of([Launch(GEMM, "qkv", 0, 5), Launch(SMALL, "qkv", 0, 9)], works)
    assert [(c.place.name, c.share, c.basis) for c in found] == [(GEMM, 1.0, ONLY)] * 3


def test_what_order_cannot_tell_is_split_by_time() -> None:
    works = [product("mlp", 0, "gate_up"), product("mlp", 0, "down", 1)]
    ran = [Launch(GEMM, "mlp", 0, 1), Launch(GEMM, "mlp", 0, 2), Launch(OTHER, "mlp", 0, 3)]
    found = charges_of(ran, works)
    assert {charge.basis for charge in found} == {BY_TIME}
    by_name: dict[str, float] = defaultdict(float)
    for charge in found:
        by_name[charge.place.name] += charge.share
    assert by_name == pytest.approx({GEMM: 1.0, OTHER: 1.0})


def test_without_a_known_product_the_longest_kernel_of_its_module_does_it() -> None:
    path = "model.layers.0.self_attn.o_proj"
    work = but(product("o_proj", 0, "o_proj"), path=path)
    elsewhere = Launch("c", "o_proj", 0, 70)
    ran = [Launch(name, "o_proj", 0, ns, path=path) for name, ns in (("a", 5), ("b", 50))]
    (charge,) = charges_of([*ran, elsewhere], [work])
    assert (charge.place.name, charge.basis) == ("b", LONGEST)
    # Of a kernel whose module is not known, only a product is taken to be one.
    assert charges_of([elsewhere], [work]) == []


def test_a_module_s_weight_goes_to_what_ran_in_it_and_no_other() -> None:
    paths = [f"model.layers.0.self_attn.{name}" for name in ("q_a_proj", "kv_a_proj", "kv_b_proj")]
    works = [but(product("qkv", 0, p), path=p) for p in paths]
    ran = [Launch(f"{GEMM}{n}", "qkv", 0, 5, path=path) for n, path in enumerate(paths[:2])]
    found = {charge.work.what: charge.place.name for charge in charges_of(ran, works)}
    # What no kernel ran for is nobody's, although another product of the component ran.
    assert found == {paths[0]: f"{GEMM}0", paths[1]: f"{GEMM}1"}


def test_a_guessed_owner_takes_no_work() -> None:
    ran = [Launch(GEMM, "qkv", 0, 5, basis="order")]
    assert charges_of(ran, [product("qkv", 0, "qkv_proj")]) == []


def test_a_weight_goes_to_the_kernels_that_point_to_it() -> None:
    works = [but(product("experts", 3, name), tensor=number)
             for number, name in enumerate(("w13", "w2"))]  # fmt: skip
    ran = [Launch("second", "experts", 3, 5, basis="order", reads=(1,)),
           Launch("first", "qkv", 2, 30, basis="order", reads=(0,)),
           Launch("again", "experts", 3, 10, basis="order", reads=(0,))]  # fmt: skip
    found = [
        (c.work.what, c.place.name, c.place.component, c.share) for c in charges_of(ran, works)
    ]
    # A reader of the weight's own component goes before one of another.
    assert found == [("w13", "again", "experts", 1.0), ("w2", "second", "experts", 1.0)]
    shared = charges_of([ran[2], Launch("part", "experts", 3, 30, reads=(0,))], works[:1])
    assert {c.place.name: c.share for c in shared} == pytest.approx({"part": 0.75, "again": 0.25})
    assert {c.basis for c in shared} == {BY_TENSOR}


def test_the_cache_is_read_by_attention_s_longest_kernel() -> None:
    shape = Shape(kv_heads=1, head_dim=64)
    read, write = attention(0, shape)
    ran = [Launch(FLASH, "attention", 0, 50), Launch(GEMM, "attention", 0, 90),
           Launch("reshape", "kv_write", 0, 2)]  # fmt: skip
    found = {charge.work.kind: charge.place.name for charge in charges_of(ran, [read, write])}
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
    there = {(run.component, run.layer) for run in ran}
    able = {(run.component, run.layer) for run in ran if is_gemm(run.name)}
    for work in works:
        place = (work.component, work.layer)
        done = (place if place in there else (work.component, -1)) in able
        assert sums.get(id(work), 0.0) == pytest.approx(1.0 if done else 0.0)


def test_many_kernels_of_one_name_share_once() -> None:
    works = [product("qkv", layer, str(layer)) for layer in range(40)]
    ran = [Launch(GEMM, "qkv", -1, 3) for _ in range(20_000)]
    found = charges_of(ran, works)
    assert [(charge.share, charge.basis) for charge in found] == [(1.0, BY_TIME)] * 40
