"""The layers that are timed: each shape once, none that a format cannot hold."""

from __future__ import annotations

from spark_prof.kernels.bench.shapes import (
    EXPERTS,
    LAYERS,
    ROUTERS,
    chosen_experts,
    dense_shapes,
    dense_work,
)


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
