"""Activations that are quantized once for each consumer."""

from __future__ import annotations

import pytest

from spark_prof.analyzers.classify.classifier import classify
from spark_prof.analyzers.conversions.conversion_costs import StepKernel, repeated_quantizations
from spark_prof.analyzers.conversions.conversion_flow import (
    PADDING,
    ROLES,
    Role,
    copies_within,
    fills_numbers,
    role_of,
)
from tests.rows import each_row

from .frames import ACTIVATION, ATTENTION, GEMM, NORM, QUANTIZE

LAYER = {
    "norm": [(NORM, "norm")],
    "q": [(QUANTIZE, "qkv"), (GEMM, "qkv")],
    "attention": [(ATTENTION, "attention")],
    "o": [(QUANTIZE, "o_proj"), (GEMM, "o_proj")],
    "up": [(QUANTIZE, "mlp"), (GEMM, "mlp")],
    "act": [(ACTIVATION, "mlp")],
    "down": [(QUANTIZE, "mlp"), (GEMM, "mlp")],
    "router": [(GEMM, "router"), ("topk", "router")],
    "expert": [(QUANTIZE, "experts"), (GEMM, "experts")],
    "expert_act": [(ACTIVATION, "experts")],
    "shared": [(QUANTIZE, "shared_experts"), (GEMM, "shared_experts")],
}


def extra(layer: str) -> list[tuple[tuple[str, ...], int, int]]:
    """Components, calls and how many are too many, of a layer spelled by the words above."""
    kernels = [
        StepKernel(name, component, role_of(name), classify(name).conversion, 2.0)
        for word in layer.split()
        for name, component in LAYER[word]
    ]
    rows = repeated_quantizations(kernels, 5)
    assert all(row.extra_us == 2.0 * row.extra and row.step == 5 for row in rows)
    return [(row.components, row.calls, row.extra) for row in rows]


@each_row(
    "layer",
    [
        pytest.param("norm q attention o norm up act down", id="once for each input"),
        pytest.param("norm q attention o norm up down", id="the activation may be in a product"),
        pytest.param("norm router expert expert_act expert", id="experts before and after theirs"),
        pytest.param("", id="nothing"),
    ],
)
def test_quiet(layer: str) -> None:
    assert extra(layer) == []


@each_row(
    ("layer", "wanted"),
    [
        pytest.param("norm q q q attention o", (("qkv",), 3, 2), id="q, k and v"),
        pytest.param("norm up up act down norm", (("mlp",), 2, 1), id="gate and up"),
        pytest.param("norm shared router expert expert_act expert norm",
         (("shared_experts", "experts"), 2, 1), id="experts and shared experts"),
        pytest.param("norm q q norm q q", (("qkv",), 4, 2), id="in two layers"),
    ],
)  # fmt: skip
def test_found(layer: str, wanted: tuple[tuple[str, ...], int, int]) -> None:
    assert extra(layer) == [wanted]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_an_example_of_each_role(role: Role) -> None:
    assert role_of(role.example) == role.name


def test_an_example_of_what_a_pad_launches() -> None:
    fill, copy = PADDING
    assert fills_numbers(fill.example)
    assert copies_within(copy.example)
    assert not fills_numbers(copy.example)
    assert not copies_within(fill.example)


def test_products_and_attention_by_the_rule_table() -> None:
    assert (role_of(GEMM), role_of(ATTENTION), role_of("")) == ("product", "attention", "")
