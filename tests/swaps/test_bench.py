"""Somebody's own kernel in a race: as right ones are timed, and wrong ones are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spark_prof.kernels.bench.request import BenchRequest
from spark_prof.kernels.bench.results import (
    OURS,
    ImplementationResult,
    MachineCeilings,
    cell_line,
    spread,
)
from spark_prof.kernels.bench.run import race_dense, race_experts
from spark_prof.kernels.bench.shapes import DenseShape, ExpertsShape, Layer, WeightFormat
from spark_prof.kernels.candidate import KernelCandidate
from spark_prof.swaps import layers
from spark_prof.swaps.builder_loading import load_builder
from spark_prof.swaps.layers import Replacement
from tests.emulator.compiler import compiler
from tests.rows import each_row

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the package's own")

RIGHT = load_builder(f"{Path(__file__).parent / 'kernels' / 'faulty.py'}:right")
CPU = torch.device("cpu")
SHAPE = DenseShape(32, 64, (Layer("tiny", "o", 32, 64),))
EXPERTS = ExpertsShape("tiny", "mxfp4", 4, 2, 64, 64, "swiglu", True)
Build = Callable[[layers.Layer], Replacement | None]


def asked(own: KernelCandidate, tokens: int) -> BenchRequest:
    return BenchRequest(tokens=(tokens,), seconds_each=0, custom=own)


def of(result: Build, form: WeightFormat = "nvfp4", tokens: int = 2) -> ImplementationResult:
    own = KernelCandidate("mine", "o", result)
    (cell,) = race_dense(SHAPE, form, asked(own, tokens), CPU)
    assert cell.subject == "mine"
    assert [each.contestant for each in cell.results][:2] == [OURS, "mine"]
    return next(each for each in cell.results if each.contestant == "mine")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "bf16"])
def test_a_right_matrix_is_timed(form: WeightFormat) -> None:
    result = of(RIGHT, form)
    assert result.failed == ""
    assert result.us is not None


@pytest.mark.slow
def test_right_experts_are_timed() -> None:
    template = load_builder(f"{Path(layers.__file__).parent / 'templates' / 'experts.py'}:build")
    own = KernelCandidate("mine", "moe", template)
    (cell,) = race_experts(EXPERTS, asked(own, 3), CPU)
    (result,) = [each for each in cell.results if each.contestant == "mine"]
    assert result.failed == ""
    assert result.error is not None
    assert result.error < 0.02


def changed(**fields: object) -> Build:
    def build(layer: layers.Layer) -> Replacement | None:
        right = RIGHT(layer)
        assert right is not None
        return replace(right, **fields)

    return build


@each_row(
    ("build", "why"),
    [
        (lambda layer: None, "it has none for this layer"),
        (changed(tokens=1), "it does not take 2 tokens"),
        (changed(fits=lambda tokens: tokens != 2), "it does not take 2 tokens"),
        (changed(bits="changed"), "the others compute something else"),
    ],
)
def test_one_that_abstains_says_why(build: Build, why: str) -> None:
    own = KernelCandidate("mine", "o", build)
    (cell,) = race_dense(SHAPE, "nvfp4", replace(asked(own, 2), competitors=("nobody",)), CPU)
    (result,) = cell.results
    assert result.us is None
    assert result.failed.startswith("Abstained: ")
    assert why in result.failed


def test_a_line_holds_the_others_against_it() -> None:
    own = KernelCandidate("mine", "o", RIGHT)
    (cell,) = race_dense(SHAPE, "nvfp4", asked(own, 1), CPU)
    times = {"mine": 2.0, OURS: 1.0}
    cell = replace(
        cell,
        results=tuple(
            ImplementationResult(name, spread([us, us]), 0.0) for name, us in times.items()
        ),
    )
    assert cell.ours == 2.0
    assert cell.best_peer() == (OURS, 1.0)
    ceilings = MachineCeilings(
        spread([1e12] * 2), spread([1e12] * 2), spread([1.0] * 2), "r", "c", "l"
    )
    line = cell_line(cell, ceilings)
    assert "2.00 us" in line
    assert f"{OURS} 1.00 us = 0.50 x" in line
    assert "mine" not in line
