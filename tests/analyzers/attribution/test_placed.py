"""Owners of kernels in bundles: what weights, ranges and data tell together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from tests.analyzers.attribution.memory import (
    COMPILED,
    PACKED,
    STRUCT,
    Line,
    Memory,
    argument,
    calls_of_lines,
    placed_lines,
    tensor,
    with_tables,
)
from tests.analyzers.reported import reported
from tests.support import MODULES, QKV, Piece, Recorded, call, kernel, kineto, step

GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
FLASH = "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90EEEEEvv"
WRITE = "_ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_EEvv"

OPEN = [
    *({"path": path, "type": "", "layer": -1, "component": component}
      for path, component in (("step.prepare", "attention"), ("step.finish", "lm_head"),
                              ("step.sample", "sampler"), ("model", ""))),
    {"path": "model.layers.3._join_mlp", "type": "", "layer": 3, "component": ""},
    {"path": "model.layers.3.mlp.experts", "type": "", "layer": 3, "component": "experts"},
    {"path": "model.layers.3.self_attn.attn", "type": "", "layer": 3, "component": "attention"},
]  # fmt: skip
LAYER, EXPERTS, ATTENTION = 4, 5, 6


QKV_WEIGHT = {n: f"model.layers.{n}.self_attn.qkv_proj" for n in (2, 3, 4)}
SHARED = "model.layers.3.mlp.shared_experts.up_proj"
CACHE = ("model.layers.2.self_attn.attn:kv_cache",)


def product(layer: int, holds: str) -> Line:
    return Line(GEMM, (QKV_WEIGHT[layer],), holds, ("qkv", layer, "weight", "self_attn.qkv_proj"),
                PACKED)  # fmt: skip


def memory() -> Memory:
    found = Memory().add(SHARED)
    for weight in QKV_WEIGHT.values():
        found.add(weight)
    found.add("model.layers.2.self_attn.attn", kind="kv", name="kv_cache")
    return found.add("model.layers.3.self_attn.attn", kind="kv", name="kv_cache",
                     at="model.layers.2.self_attn.attn:kv_cache")  # fmt: skip


def check(folder: Path, modules: Sequence[int | None], *lines: Line) -> None:
    """Of lines that were captured while those modules were open, each is placed as it says."""
    found = placed_lines(folder, memory(), lines, OPEN, calls_of_lines(modules))
    assert found == [line.place for line in lines]


def test_a_weight_is_more_exact_than_the_open_op(tmp_path: Path) -> None:
    place = ("shared_experts", 3, "weight", "mlp.shared_experts.up_proj")
    line = Line(GEMM, (SHARED,), "x y", place, PACKED)
    check(tmp_path, [EXPERTS], line)


@pytest.mark.parametrize("style", [STRUCT, "pointer"])
def test_a_struct_s_word_yields_to_a_range_of_another_layer(tmp_path: Path, style: str) -> None:
    place = ("attention", 3, "range", "self_attn.attn")
    if style == "pointer":
        place = ("qkv", 2, "weight", "self_attn.qkv_proj")
    line = Line("some_kernel", (QKV_WEIGHT[2],), "x", place, style)
    check(tmp_path, [ATTENTION], line)


def test_of_the_modules_that_hold_a_weight_the_open_one_reads_it(tmp_path: Path) -> None:
    """MLA absorbs a part of kv_b_proj in attention; in a prefill kv_b_proj is a product."""
    part = ("model.layers.3.self_attn.mla", "model.layers.3.self_attn.kv_b_proj")
    both = memory().add(part[1]).add(part[0], size=4000, component="attention", at=part[1])
    modules = [*OPEN, {"path": part[1], "type": "", "layer": 3, "component": "qkv"}]
    lines = (
        Line(GEMM, (part[1],), "x", ("qkv", 3, "weight", "self_attn.kv_b_proj"), PACKED),
        Line(GEMM, (part[1],), "x", ("attention", 3, "weight", "self_attn.mla"), PACKED),
        Line(GEMM, (part[1],), "x", ("attention", 3, "weight", "self_attn.mla"), PACKED),
    )
    calls = [*call(len(OPEN), -20, 20), *call(ATTENTION, 80, 120)]
    found = placed_lines(tmp_path, both, lines, modules, calls)
    assert found == [line.place for line in lines]


def test_a_shared_cache_takes_its_layer_from_the_range_or_has_none(tmp_path: Path) -> None:
    write = Line(WRITE, CACHE, "k", ("kv_write", 3, "kv", "self_attn.attn"))
    read = Line(FLASH, CACHE, "k p", ("attention", 3, "kv", "self_attn.attn"), STRUCT)
    check(tmp_path / "range", [ATTENTION] * 2, write, read)
    line = Line(FLASH, CACHE, "k", ("attention", -1, "kv", "self_attn.attn"), STRUCT)
    check(tmp_path / "none", [None], line)


def test_memory_of_attention_and_mamba_is_told_apart_by_ranges_and_data(tmp_path: Path) -> None:
    both = memory().add("model.layers.2.mamba", kind="state", name="ssm", component="ssm",
                        at="model.layers.2.self_attn.attn:kv_cache")  # fmt: skip
    shared = ("model.layers.2.mamba:ssm",)
    lines = (
        Line("some_kernel", shared, "k p", ("attention", 3, "kv", "self_attn.attn")),
        Line("some_kernel", shared, "p q", ("attention", 3, "flow", "self_attn.attn")),
        Line("some_kernel", shared, "z", ("other", -1, "none", "")),
        Line("rms_norm_kernel", shared, "y", ("norm", -1, "name", "")),
    )
    calls = call(ATTENTION, -20, 20)
    found = placed_lines(tmp_path, both, lines, OPEN, calls)
    assert found == [line.place for line in lines]


def test_a_container_that_was_open_tells_the_layer_but_no_component(tmp_path: Path) -> None:
    """Only what runs in the model as a whole, or in a layer, is followed by data."""
    first = product(2, "x")
    unknown = Line("some_kernel", (), "x", ("other", 3, "none", ""))
    named = Line("rms_norm_kernel", (), "x", ("norm", 3, "name", ""))
    last = product(4, "y")
    check(tmp_path, [None, LAYER, LAYER, None], first, unknown, named, last)


FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIiEESt5arrayEEvv"


def test_a_fill_works_for_what_reads_it(tmp_path: Path) -> None:
    """Its memory was the product's before."""
    first = product(3, "x")
    role = "mlp.shared_experts.up_proj"
    last = Line(GEMM, (SHARED,), "x", ("shared_experts", 3, "weight", role), PACKED)
    fill = Line(FILL, (), "x", ("shared_experts", 3, "flow", role))
    other = Line("some_kernel", (), "x", ("qkv", 3, "flow", "self_attn.qkv_proj"))
    for number, line in enumerate((fill, other)):
        check(tmp_path / str(number), [None] * 3, first, line, last)


def test_a_weight_that_is_not_believed_joins_nobody(tmp_path: Path) -> None:
    """Stale words in structs lie in the allocator's memory, as activations do."""
    stale = Line("some_kernel", (QKV_WEIGHT[3],), "", ("other", -1, "none", ""), STRUCT)
    check(tmp_path, [None] * 3, product(3, "x"), stale, stale)


def test_launches_outside_graphs(tmp_path: Path) -> None:
    """Each by its own correlation; steps that were not read by one that runs the same."""
    last = ("some_kernel", "some_kernel", "another_kernel", "some_kernel")
    rows = [
        row
        for number, name in enumerate(last)
        for at in [1000 * number]
        for row in (kernel("gemm", at + 150, at + 300, 10 * number + 1, at + 110),
                    kernel(name, at + 310, at + 320, 10 * number + 2, at + 500))
    ]  # fmt: skip
    # In the last step nothing is open.
    calls = [
        pair for number in range(3) for pair in call(QKV, 1000 * number + 100, 1000 * number + 200)
    ]
    steps = [step(number, 1000 * number, 1000 * number + 900) for number in range(4)]
    piece = Piece(steps, calls, kineto(*rows))
    bundle = Recorded({0: [piece]}, modules=MODULES, facts=COMPILED).assemble(tmp_path / "b")
    weight = tensor("model.layers.0.mlp.gate_up_proj", 0x10000)
    pool = tensor("", 0x80000, 1 << 16, kind="memory", layer=-1, component="")
    outside = {"node": 0}
    arguments = [
        argument(0, 0x10000, correlation=1) | outside,
        argument(0, 0x80000, correlation=1, argument=1) | outside,
        argument(0, 0x80000, correlation=2) | outside,
    ]
    bundle = with_tables(bundle, [weight, pool], arguments)
    found = place_kernels(bundle, 0)[["component", "layer", "basis", "role"]]
    read = [("mlp", 0, "weight", "mlp.gate_up_proj"), ("mlp", 0, "flow", "mlp.gate_up_proj")]
    assert list(found.itertuples(index=False, name=None)) == [
        *read,
        *read,
        ("qkv", 0, "range", "qkv_proj"),
        ("other", -1, "none", ""),
        ("other", -1, "none", ""),
        ("other", -1, "none", ""),
    ]
    coverage = reported(bundle).coverage
    shares = (coverage.proven, coverage.derived, coverage.guessed, coverage.unknown)
    assert shares == pytest.approx((450 / 640, 20 / 640, 0.0, 170 / 640))
    assert coverage.component == coverage.layer == pytest.approx(470 / 640)


def test_arguments_that_belong_to_nothing(tmp_path: Path) -> None:
    """A damaged table leaves the ranges."""
    piece = Piece([step(0, 0, 900)], call(QKV, 100, 200), kineto(kernel("g", 150, 300, 1, 110)))
    bundle = Recorded({0: [piece]}).assemble(tmp_path / "b")
    odd = ({"node": 0}, {"node": -9, "size": -1}, {"argument": -(1 << 31), "offset": 1 << 30})
    rows = [argument(7, -(1 << 62)), *(argument(0, 5) | more for more in odd)]
    found = place_kernels(with_tables(bundle, [tensor("m", 1 << 62, 1 << 62)], rows), 0)
    assert found["basis"].tolist() == ["range"]


SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"


def test_what_adds_up_a_split_product_is_its_products(tmp_path: Path) -> None:
    """Of shared experts that run inside the experts' range, on a stream of their own.

    Nemotron-H on vLLM 0.33: each product of them is split, and what adds it up was the experts'.
    """
    role = "mlp.shared_experts.up_proj"
    held = Memory().add(SHARED).add("model.layers.3.mlp.experts", name="w13_weight")
    up = Line(GEMM, (SHARED,), "x w", ("shared_experts", 3, "weight", role), PACKED, 9)
    split = Line(SPLIT, (), "w y", ("shared_experts", 3, "flow", role), stream=9)
    routed = Line("fused_moe_kernel", ("model.layers.3.mlp.experts:w13_weight",), "x z",
                  ("experts", 3, "weight", "mlp.experts.w13"))  # fmt: skip
    # Behind another kernel than a product it is what its range says.
    loose = Line(SPLIT, (), "z y", ("experts", 3, "range", "mlp.experts"))
    lines = (up, split, routed, loose, up, split)
    calls = calls_of_lines([EXPERTS] * len(lines))
    assert placed_lines(tmp_path, held, lines, OPEN, calls) == [line.place for line in lines]


def test_an_exact_range_of_a_split_products_sum_stays(tmp_path: Path) -> None:
    """In an eager run the module of the product itself is open."""
    role = "mlp.shared_experts.up_proj"
    opened = [*OPEN, {"path": SHARED, "type": "", "layer": 3, "component": "shared_experts"}]
    up = Line(GEMM, (SHARED,), "x w", ("shared_experts", 3, "weight", role), PACKED)
    split = Line(SPLIT, (), "w y", ("shared_experts", 3, "range", role))
    calls = calls_of_lines([len(OPEN)] * 2)
    placed = placed_lines(tmp_path, Memory().add(SHARED), (up, split), opened, calls)
    assert placed == [up.place, split.place]


ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>>(int)"


def test_what_the_model_launches_between_its_modules_is_of_no_layer(tmp_path: Path) -> None:
    """Kimi-Linear's last residual add on vLLM 0.33: it was its last layer's experts."""
    opened = [
        *OPEN,
        {"path": "model.layers.3", "type": "", "layer": 3, "component": ""},
        {"path": "model.norm", "type": "", "layer": -1, "component": "norm"},
    ]
    held = memory().add("model.norm", shape="64").add("model.layers.3.mlp.experts")
    experts = Line("fused_moe_kernel", ("model.layers.3.mlp.experts",), "x",
                   ("experts", 3, "weight", "mlp.experts"))  # fmt: skip
    norm = Line("rms_norm_kernel", ("model.norm",), "y", ("norm", -1, "weight", "norm"))
    finish = Line("some_kernel", (), "y", ("lm_head", -1, "range", "step.finish"))
    for folder, last, place in (
        ("norm", norm, ("norm", -1, "flow", "norm")),
        ("finish", finish, ("other", -1, "none", "")),
    ):
        lines = (experts, Line(ADD, (), "x y", place), last)
        calls = [*call(5, -20, 20), *(call(1, 180, 220) if last is finish else call(8, 180, 220))]
        found = placed_lines(tmp_path / folder, held, lines, opened, calls)
        assert found == [line.place for line in lines]
        # In a compiled model its call is around all of its layers, which are not marked.
        found = placed_lines(
            tmp_path / f"{folder}-compiled",
            held,
            lines,
            opened[:-2] + opened[-1:],
            [*call(5, -20, 20), *call(1 if last is finish else 7, 180, 220)],
        )
        assert found[1] == ("experts", 3, "flow", "mlp.experts")


def test_a_compiled_fill_reads_nothing_of_who_had_its_memory(tmp_path: Path) -> None:
    """Qwen3.5's zeros on vLLM 0.33: a layer's norm had had their memory."""
    for number, (name, place) in enumerate(
        (("triton_poi_fused_zeros_3", ("other", -1, "none", "")),
         ("triton_poi_fused_mul_3", ("qkv", 3, "flow", "self_attn.qkv_proj")))
    ):  # fmt: skip
        line = Line(name, (), "x", place)
        check(tmp_path / str(number), [None] * 3, product(3, "x"), line, product(3, "y"))
