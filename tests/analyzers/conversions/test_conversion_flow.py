"""Which kernel reads what a conversion wrote.

Activations that are quantized once for each consumer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from spark_prof.analyzers.classify.classifier import classify
from spark_prof.analyzers.conversions.conversion_costs import StepKernel, repeated_quantizations
from spark_prof.analyzers.conversions.conversion_flow import (
    PADDING,
    ROLES,
    flow_of,
    padding_of,
    role_of,
)
from tests.rows import each_row

from .frames import ACTIVATION, ATTENTION, CAST, COPY, GEMM, NORM, QUANTIZE, K, placed


def flow(kernels: Sequence[K]) -> dict[int, tuple[int, int, int]]:
    """Consumer, producer and place of each conversion, by its position."""
    converts = np.array([classify(kernel.name).conversion is not None for kernel in kernels])
    copies = np.array([kernel.kind != "kernel" for kernel in kernels])
    found = flow_of(placed(kernels), converts & ~copies, copies)
    rows, *others = (of.tolist() for of in found)
    return dict(zip(rows, zip(*others, strict=True), strict=True))


def one_by_one(kernels: Sequence[K]) -> dict[int, tuple[int, int, int]]:
    """The same by looking at the kernels one after another."""

    def same(a: K, b: K) -> bool:
        return (a.step, a.stream) == (b.step, b.stream)

    def plain(kernel: K) -> bool:
        return classify(kernel.name).conversion is None and kernel.kind == "kernel"

    found = {}
    for number, kernel in enumerate(kernels):
        if kernel.kind != "kernel" or plain(kernel):
            continue
        after = [n for n in range(number + 1, len(kernels))
                 if same(kernels[n], kernel) and plain(kernels[n])]  # fmt: skip
        before = [n for n in range(number) if same(kernels[n], kernel) and plain(kernels[n])]
        own = kernel.component not in ("other", "norm")
        first = after[0] if after else -1
        fitting = [n for n in after[:8] if kernels[n].component == kernel.component]
        consumer = fitting[0] if own and fitting else first
        place = number if own or consumer < 0 else consumer
        found[number] = (consumer, before[-1] if before else -1, place)
    return found


@each_row("seed", range(40))
def test_against_one_by_one(seed: int) -> None:
    chosen = random.Random(seed)
    names = [QUANTIZE, CAST, GEMM, NORM, COPY]
    step, kernels = 0, []
    for _ in range(chosen.randrange(1, 80)):
        step += chosen.random() < 0.1
        name = chosen.choice(names)
        kernels.append(
            K(name, chosen.choice(["other", "norm", "qkv", "experts"]), step,
              chosen.choice([7, 7, 9]), kind="memcpy" if name == COPY else "kernel")
        )  # fmt: skip
    assert flow(kernels) == one_by_one(kernels)


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
        StepKernel(name, component, classify(name).conversion, 2.0)
        for word in layer.split()
        for name, component in LAYER[word]
    ]
    rows = repeated_quantizations(kernels, 5)
    assert all(row.extra_us == 2.0 * row.extra and row.step == 5 for row in rows)
    return [(row.components, row.calls, row.extra) for row in rows]


@each_row(
    ("layer", "wanted"),
    [
        pytest.param("norm q attention o norm up act down", [], id="once for each input"),
        pytest.param("norm q attention o norm up down", [],
                     id="the activation may be in a product"),
        pytest.param("norm router expert expert_act expert", [],
                     id="experts before and after theirs"),
        ("", []),
        pytest.param("norm q q q attention o", [(("qkv",), 3, 2)], id="q, k and v"),
        pytest.param("norm up up act down norm", [(("mlp",), 2, 1)], id="gate and up"),
        pytest.param("norm shared router expert expert_act expert norm",
                     [(("shared_experts", "experts"), 2, 1)], id="experts and shared experts"),
        pytest.param("norm q q norm q q", [(("qkv",), 4, 2)], id="in two layers"),
    ],
)  # fmt: skip
def test_what_is_quantized_again(
    layer: str, wanted: list[tuple[tuple[str, ...], int, int]]
) -> None:
    assert extra(layer) == wanted


def test_every_role_knows_its_example() -> None:
    assert [role_of(role.example) for role in ROLES] == [role.name for role in ROLES]
    assert [padding_of(role.example) for role in PADDING] == ["fill", "copy"]
