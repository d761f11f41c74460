"""The layers that are timed, and random weights: exact in BF16, the same again, counted."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
import torch

from spark_prof.kernels.bench.random_weights import (
    bytes_of_expert,
    decoded,
    random_experts,
    random_weight,
    row_slices,
    stored_bytes,
)
from spark_prof.kernels.bench.shapes import (
    EXPERTS,
    LAYERS,
    ROUTERS,
    ExpertsShape,
    WeightFormat,
    chosen_experts,
    dense_shapes,
    dense_work,
)
from spark_prof.kernels.check.inputs import decode, part_of
from tests.rows import each_row


def test_every_layer_is_in_one_shape() -> None:
    shapes = dense_shapes()
    assert len({(shape.rows, shape.columns) for shape in shapes}) == len(shapes)
    assert sorted(map(str, LAYERS)) == sorted(str(its) for shape in shapes for its in shape.layers)


def test_small_shapes_come_first() -> None:
    sizes = [shape.rows * shape.columns for shape in dense_shapes()]
    assert sizes == sorted(sizes)


def test_routers_are_timed_in_bfloat16_alone() -> None:
    work = dense_work((), ["mxfp4", "bf16"])
    sizes = [shape.rows * shape.columns for shape, _ in work]
    assert sizes == sorted(sizes)
    assert len(work) == len(set(work)) == 2 * len(dense_shapes()) + len(ROUTERS)
    routers = [(form, its.slot) for shape, form in work for its in shape.layers if its in ROUTERS]
    assert routers == [("bf16", "router")] * len(ROUTERS)


def test_blocks_of_scales_divide_the_columns() -> None:
    assert all(layer.columns % 32 == 0 for layer in (*LAYERS, *ROUTERS))
    assert all(layer.rows % 16 == 0 for layer in (*LAYERS, *ROUTERS)), "as BF16 wants them"
    assert all(shape.hidden % 32 == shape.intermediate % 32 == 0 for shape in EXPERTS)


def test_models_are_chosen_by_parts_of_their_names() -> None:
    assert {its.model for shape in dense_shapes(["OSS-20"]) for its in shape.layers} == {
        "gpt-oss-20b"
    }
    assert [shape.model for shape in chosen_experts(["next", "120b"])] == [
        "gpt-oss-120b",
        "Qwen3-Next-80B-A3B",
    ]
    assert dense_shapes(["no such model"]) == []


def test_a_last_layer_is_one_in_every_model_that_has_its_shape() -> None:
    heads = [shape for shape in dense_shapes() if shape.is_lm_head]
    assert heads
    assert all(shape.rows > 100_000 for shape in heads)
    assert "gpt-oss-20b lm_head, gpt-oss-120b lm_head" in [shape.label for shape in heads]


CPU = torch.device("cpu")
FORMATS = get_args(WeightFormat)


@each_row("form", FORMATS)
def test_bfloat16_holds_every_weight(form: WeightFormat) -> None:
    weight = random_weight(form, (64, 1024), CPU)
    exact = decode(weight)
    assert torch.equal(decoded(weight).to(torch.float64), exact)
    assert 0.01 < float(exact.std()) < 0.1
    assert exact.unique().numel() > 20


@each_row(("form", "bits"), [("nvfp4", 4.5), ("mxfp4", 4.25), ("fp8", 8 + 32 / 2880), ("bf16", 16)])
def test_the_bytes_are_those_of_codes_and_scales(form: WeightFormat, bits: float) -> None:
    assert stored_bytes(random_weight(form, (32, 2880), CPU)) == 32 * 2880 * bits / 8


@each_row("form", FORMATS)
def test_slices_are_the_matrix(form: WeightFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_prof.kernels.bench.random_weights._SLICE_ELEMENTS", 300)
    weight = random_weight(form, (11, 64), CPU)
    parts = list(row_slices(weight))
    assert len(parts) > 1
    assert torch.equal(torch.cat([decode(part) for part in parts]), decode(weight))


@each_row("form", FORMATS)
def test_a_seed_gives_the_same_weights(form: WeightFormat) -> None:
    first, again, other = (decode(random_weight(form, (4, 64), CPU, seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "shape",
    [
        ExpertsShape("gpt-oss", "mxfp4", 4, 2, 64, 96, "swiglu", True),
        ExpertsShape("Qwen", "nvfp4", 3, 2, 64, 32, "silu", False),
    ],
    ids=lambda shape: shape.model,
)
def test_an_expert_is_its_slice_of_all(shape: ExpertsShape) -> None:
    weights = random_experts(shape, CPU)
    for expert, weight in product(range(shape.experts), (weights.gate_up, weights.down)):
        assert torch.equal(decode(part_of(weight, expert)), decode(weight)[expert])
    elements = 3 * shape.hidden * shape.intermediate
    biases = 2 * (2 * shape.intermediate + shape.hidden) if shape.bias else 0
    bits = 4.5 if shape.format == "nvfp4" else 4.25
    assert bytes_of_expert(weights) == elements * bits / 8 + biases
