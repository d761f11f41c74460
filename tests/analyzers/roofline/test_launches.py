"""Which kernel does which work."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.roofline.launches import (
    BY_ORDER,
    BY_TENSOR,
    LONGEST,
    Launch,
    StepGroup,
    attributed_work,
    drafted_work,
    groups_of,
    launches_of,
)
from spark_prof.analyzers.roofline.needs import LayerWork, ModelShape, StepLoad, attention, reading
from spark_prof.analyzers.roofline.weight_bytes import Weights
from tests.rows import each_row


def steps(tokens: list[int], requests: list[int], phase: str = "decode") -> pd.DataFrame:
    count = len(tokens)
    zeros = np.zeros(count, np.int64)
    decode = phase == "decode"
    return pd.DataFrame(
        {
            "phase": [phase] * count,
            "prefill_requests": zeros if decode else requests,
            "prefill_tokens": zeros if decode else tokens,
            "decode_requests": requests if decode else zeros,
            "decode_tokens": tokens if decode else zeros,
            "context_tokens": [100 * number for number in requests],
        },
        index=pd.RangeIndex(1000, 1000 + count),
    )


def test_one_group_for_each_size_and_a_step_from_its_middle() -> None:
    assert groups_of(steps([1, 1, 1, 8, 8], [1, 1, 1, 8, 8]), "decode") == [
        StepGroup(1001, StepLoad(1, 1, 1, 100), pytest.approx(0.6)),
        StepGroup(1004, StepLoad(8, 8, 8, 100), pytest.approx(0.4)),
    ]


@each_row("count", [1, 7, 8, 9, 300])
def test_every_step_is_in_one_of_a_few_groups(count: int) -> None:
    tokens = list(range(1, count + 1))
    found = groups_of(steps(tokens, tokens), "decode")
    assert len(found) == min(count, 8)
    assert sum(group.share for group in found) == pytest.approx(1.0)
    mean = sum(group.load.tokens * group.share for group in found)
    assert mean == pytest.approx(np.mean(tokens))
    assert [group.step for group in found] == sorted(group.step for group in found)


MODULES = pd.DataFrame(
    [(0, "model", ""), (3, "model.layers.0.mlp", "mlp"), (4, "model.layers.0", "")],
    columns=["module", "path", "component"],
)
RAN = ("name", "module", "placed_by", "step", "layer")


def kernels(*rows: tuple[object, ...], **more: Any) -> pd.DataFrame:
    """Kernels by what RAN names, one after the other."""
    found = pd.DataFrame(rows, columns=list(RAN)).assign(
        kind="kernel", component="mlp", part=0, start_ns=range(len(rows))
    )
    found = found.assign(end_ns=found["start_ns"] + 5, basis="range", role="mlp").assign(**more)
    names = ["name", "kind", "component", "placed_by", "basis", "role"]
    return found.astype(dict.fromkeys(names, "category"))


def test_launches_have_the_role_and_the_basis_of_their_kernels() -> None:
    rows = [("inside", 3, "", 1, 0), ("in the model", 0, "", 1, 0),
            ("in none", -1, "", 1, 0), ("in no component", 4, "", 1, 0),
            ("guessed", 3, "guess", 1, 0), ("another step", 3, "", 2, 0)]  # fmt: skip
    bases = ["range", "order", "kv", "weight", "name", "range"]
    roles = ["mlp", "", "self_attn.attn", "mlp.down_proj", "", "mlp"]
    found = launches_of(kernels(*rows, basis=bases, role=roles), [1], MODULES)[1]
    assert [(launch.place.role, launch.proven, launch.path) for launch in found] == [
        ("mlp", True, "model.layers.0.mlp"), ("", False, ""), ("self_attn.attn", True, ""),
        ("mlp.down_proj", True, ""), ("", False, ""),
    ]  # fmt: skip


GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
OTHER = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1"
SMALL = "triton_red_fused_fused_add_rms_norm_0"
FLASH = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>(P)"


ONE = StepLoad(1, 1, 1, 0)


def product(component: str, layer: int, what: str) -> LayerWork:
    weights = Weights(component, layer, what, 100, 50, "bfloat16")
    return reading(weights, ONE, ModelShape())


def but(work: LayerWork, **changes: Any) -> LayerWork:
    """The same work on weights that differ in that."""
    assert work.weights is not None
    return reading(replace(work.weights, **changes), ONE, ModelShape())


def test_two_products_of_a_layer_go_to_its_two_kernels_in_order() -> None:
    works = [product("experts", 3, "w2"), product("experts", 3, "w13")]
    ran = [Launch(GEMM, "experts", 3, 5), Launch(SMALL, "experts", 3, 90),
           Launch(OTHER, "experts", 3, 7)]  # fmt: skip
    found = {(c.place.name, c.work.name, c.basis) for c in attributed_work(ran, works)}
    assert found == {(GEMM, "w13", BY_ORDER), (OTHER, "w2", BY_ORDER)}


def test_without_a_known_product_the_longest_kernel_of_its_module_does_it() -> None:
    path = "model.layers.0.self_attn.o_proj"
    work = but(product("o_proj", 0, "o_proj"), path=path)
    elsewhere = Launch("c", "o_proj", 0, 70)
    ran = [Launch(name, "o_proj", 0, ns, path=path) for name, ns in (("a", 5), ("b", 50))]
    (charge,) = attributed_work([*ran, elsewhere], [work])
    assert (charge.place.name, charge.basis) == ("b", LONGEST)
    # Of a kernel whose module is not known, only a product is taken to be one; a guessed owner
    # takes no work.
    assert attributed_work([elsewhere], [work]) == []
    guessed = [Launch(GEMM, "qkv", 0, 5, basis="order")]
    assert attributed_work(guessed, [product("qkv", 0, "qkv_proj")]) == []


def test_a_module_s_weight_goes_to_what_ran_in_it_and_no_other() -> None:
    paths = [f"model.layers.0.self_attn.{name}" for name in ("q_a_proj", "kv_a_proj", "kv_b_proj")]
    works = [but(product("qkv", 0, p), path=p) for p in paths]
    ran = [Launch(f"{GEMM}{n}", "qkv", 0, 5, path=path) for n, path in enumerate(paths[:2])]
    found = {charge.work.name: charge.place.name for charge in attributed_work(ran, works)}
    # What no kernel ran for is nobody's, although another product of the component ran.
    assert found == {paths[0]: f"{GEMM}0", paths[1]: f"{GEMM}1"}


def test_a_weight_goes_to_the_kernels_that_point_to_it() -> None:
    works = [but(product("experts", 3, name), tensor=number)
             for number, name in enumerate(("w13", "w2"))]  # fmt: skip
    ran = [Launch("second", "experts", 3, 5, basis="order", reads=(1,)),
           Launch("first", "qkv", 2, 30, basis="order", reads=(0,)),
           Launch("again", "experts", 3, 10, basis="order", reads=(0,))]  # fmt: skip
    found = [
        (c.work.name, c.place.name, c.place.component, c.share) for c in attributed_work(ran, works)
    ]
    # A reader of the weight's own component goes before one of another.
    assert found == [("w13", "again", "experts", 1.0), ("w2", "second", "experts", 1.0)]
    shared = attributed_work([ran[2], Launch("part", "experts", 3, 30, reads=(0,))], works[:1])
    assert {c.place.name: c.share for c in shared} == pytest.approx({"part": 0.75, "again": 0.25})
    assert {c.basis for c in shared} == {BY_TENSOR}


def test_a_drafter_reads_a_head_in_each_of_its_passes() -> None:
    """The model's that it shares, or one that it has for itself; and no other kernel's work."""
    head = but(product("lm_head", -1, "lm_head"), tensor=0).weights
    own = but(product("lm_head", -1, "head"), tensor=1).weights
    assert head is not None
    assert own is not None
    draft = Launch(GEMM, "lm_head", -1, 5, role="drafter.lm_head", reads=(0,))
    passes = [draft, draft, replace(draft, name="split", ns=10), replace(draft, reads=(1,))]
    looked_up = Launch("lookup", "embedding", -1, 5, role="drafter.embed_tokens", reads=(0,))
    found = drafted_work(
        [*passes, looked_up], [head, own], replace(ONE, requests=3.0), ModelShape()
    )
    streamed = defaultdict[str, float](float)
    for charge in found:
        streamed[charge.work.name] += charge.work.need.streamed * charge.share
    # A pass may take several kernels: it is read as often as the rarest of their names ran.
    assert streamed == pytest.approx({"lm_head": 1.0 * head.bytes, "head": 1.0 * own.bytes})
    twice = drafted_work([draft, draft], [head], ONE, ModelShape())
    assert sum(c.work.need.streamed * c.share for c in twice) == 2 * head.bytes
    assert not drafted_work([looked_up], [head, own], ONE, ModelShape())
    assert [run.drafts for run in (draft, Launch(GEMM, "lm_head", -1, 5, role="lm_head"))] == [
        True, False,
    ]  # fmt: skip


def test_the_cache_is_read_by_attention_s_longest_kernel() -> None:
    shape = ModelShape(kv_elements=128)
    read, write = attention(0, ONE, shape)
    ran = [Launch(FLASH, "attention", 0, 50), Launch(GEMM, "attention", 0, 90),
           Launch("reshape", "kv_write", 0, 2)]  # fmt: skip
    found = {charge.work.kind: charge.place.name for charge in attributed_work(ran, [read, write])}
    assert found == {"attention": FLASH, "kv_write": "reshape"}


@each_row("seed", range(20))
def test_shares_of_each_piece_of_work_add_up_to_one_or_none(seed: int) -> None:
    rng = random.Random(seed)
    places = [(component, layer) for component in ("qkv", "mlp", "norm") for layer in (-1, 0, 1)]
    ran = [
        Launch(rng.choice([GEMM, OTHER, SMALL, "x"]), *rng.choice(places), rng.choice([0, 1, 9]))
        for _ in range(rng.randrange(12))
    ]
    works = [product(*rng.choice(places), str(i)) for i in range(rng.randrange(9))]
    sums: dict[int, float] = defaultdict(float)
    for charge in attributed_work(ran, works):
        assert 0 <= charge.share <= 1
        sums[id(charge.work)] += charge.share
    there = {(run.component, run.layer) for run in ran}
    able = {(run.component, run.layer) for run in ran if is_gemm(run.name)}
    for work in works:
        place = (work.component, work.layer)
        done = (place if place in there else (work.component, -1)) in able
        assert sums.get(id(work), 0.0) == pytest.approx(1.0 if done else 0.0)
