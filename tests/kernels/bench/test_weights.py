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
    ExpertsShape,
    WeightFormat,
)
from spark_prof.kernels.check.inputs import decode, part_of
from tests.rows import each_row

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


@pytest.mark.parametrize(
    "shape",
    [
        ExpertsShape("gpt-oss", "mxfp4", 4, 2, 64, 96, "swiglu", True),
        ExpertsShape("Qwen", "nvfp4", 3, 2, 64, 32, "silu", False),
        ExpertsShape("DeepSeek", "bf16", 3, 2, 64, 32, "silu", False),
    ],
    ids=lambda shape: shape.model,
)
def test_an_expert_is_its_slice_of_all(shape: ExpertsShape) -> None:
    weights = random_experts(shape, CPU)
    for expert, weight in product(range(shape.experts), (weights.gate_up, weights.down)):
        assert torch.equal(decode(part_of(weight, expert)), decode(weight)[expert])
    elements = 3 * shape.hidden * shape.intermediate
    biases = 2 * (2 * shape.intermediate + shape.hidden) if shape.bias else 0
    bits = {"mxfp4": 4.25, "nvfp4": 4.5, "bf16": 16}[shape.format]
    assert bytes_of_expert(weights) == elements * bits / 8 + biases
