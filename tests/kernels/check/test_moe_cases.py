"""The cases of experts: right arithmetic passes each, and each kind of wrong one is seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Literal

import pytest

pytest.importorskip("torch")

from spark_prof.kernels.check.cases import MoeCase, moe_cases, run_moe_case
from spark_prof.kernels.check.inputs import Layer, Sizes
from tests.kernels.check.plain import Wrong, plain_moe
from tests.rows import each_row

FORMATS: tuple[Literal["nvfp4", "mxfp4"], ...] = ("nvfp4", "mxfp4")
SIZES = Sizes(8, 3, 192, 96)
CASES = [case for kind in FORMATS for case in moe_cases(kind)]
CASES += [MoeCase(kind, Sizes(4, 2, 320, 160), 4) for kind in FORMATS]


@each_row("case", CASES)
def test_right_arithmetic_passes(case: MoeCase) -> None:
    assert run_moe_case(case, plain_moe(), "cpu").detail == ""


def test_labels_tell_cases_apart() -> None:
    assert len({case.label for case in CASES}) == len(CASES)


WRONG = {
    "gate for up": Wrong(gate_is_up=True),
    "no limit": Wrong(no_limit=True),
    "no 1 beside up": Wrong(no_shift=True),
    "SiLU for SwiGLU": Wrong(alpha_one=True),
    "no biases": Wrong(no_biases=True),
    "an expert of one token left out": Wrong(dropped=(2, 1)),
    "equal weights": Wrong(equal_weights=True),
}


@each_row(("what", "kind"), list(product(WRONG, FORMATS)))
def test_wrong_arithmetic_is_seen(what: str, kind: Literal["nvfp4", "mxfp4"]) -> None:
    case = MoeCase(kind, SIZES, 5, "swiglu")
    assert "wrong" in run_moe_case(case, plain_moe(WRONG[what]), "cpu").detail


@each_row("name", ["gate_up", "down"])
@each_row("kind", FORMATS)
def test_weights_of_another_expert_are_seen(name: str, kind: Literal["nvfp4", "mxfp4"]) -> None:
    def rotated(layer: Layer) -> object:
        weight = getattr(layer, name)
        return plain_moe()(
            replace(layer, **{name: replace(weight, packed=weight.packed.roll(1, dims=0))})
        )

    assert "wrong" in run_moe_case(MoeCase(kind, SIZES, 5), rotated, "cpu").detail  # type: ignore[arg-type]
