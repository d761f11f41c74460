"""The cases: right arithmetic passes each of them, and each kind of wrong one is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Literal

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import ExpertsLayer, Format
from spark_prof.kernels.check.cases import (
    DenseCase,
    MoeCase,
    Route,
    RoutingCase,
    dense_cases,
    moe_cases,
    routing_cases,
    run_dense_case,
    run_moe_case,
    run_routing_case,
)
from spark_prof.kernels.check.inputs import Sizes
from spark_prof.kernels.check.oracles import RoutingRule
from spark_prof.kernels.kernel_error import KernelError
from tests.kernels.check.plain import Wrong, plain_linear, plain_moe, plain_route
from tests.rows import each_row

ROUTING_CASES = list(routing_cases())
USUAL_ROUTING = RoutingCase(32, 4, 5)

Routed = tuple[torch.Tensor, torch.Tensor]


@each_row("case", ROUTING_CASES)
def test_right_routing_passes(case: RoutingCase) -> None:
    assert run_routing_case(case, plain_route, "cpu").detail == ""


def test_labels_tell_cases_of_routing_apart() -> None:
    assert len({case.label for case in ROUTING_CASES}) == len(ROUTING_CASES)


def lowest(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    return plain_route(-logits, top_k)


def all_experts_count(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    experts, _ = plain_route(logits, top_k)
    return experts, torch.softmax(logits.float(), -1).gather(1, experts.long())


def one_too_few(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    return plain_route(logits, top_k - 1)


def beyond(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    experts, weights = plain_route(logits, top_k)
    experts[0, 0] = logits.shape[1]
    return experts, weights


def rounded_weights(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    experts, weights = plain_route(logits, top_k)
    return experts, weights.bfloat16().float()


def no_correction(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    return plain_route(logits, top_k, replace(rule, correction=None))


def corrected_weights(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    experts, _ = plain_route(logits, top_k, rule)
    weights = rule.scores(logits).float().gather(1, experts.long())
    return experts, weights / weights.sum(-1, keepdim=True) * rule.scale


def no_scale(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
    return plain_route(logits, top_k, replace(rule, scale=1.0))


@pytest.mark.parametrize("route", [no_correction, corrected_weights, no_scale])
def test_wrong_sigmoid_routing_is_seen(route: Route) -> None:
    case = RoutingCase(128, 6, 5, scheme="corrected sigmoid")
    assert run_routing_case(case, plain_route, "cpu").detail == ""
    assert run_routing_case(case, route, "cpu").detail != ""


@each_row("route", [lowest, all_experts_count, one_too_few, beyond, rounded_weights])
def test_wrong_routing_is_seen(route: Route) -> None:
    assert run_routing_case(USUAL_ROUTING, route, "cpu").detail != ""


def test_the_higher_number_among_equals_is_seen() -> None:
    def from_behind(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
        experts, weights = plain_route(logits.flip(-1), top_k)
        return logits.shape[1] - 1 - experts, weights

    assert run_routing_case(RoutingCase(32, 4, 5, "ties"), from_behind, "cpu").detail != ""


MOE_FORMATS: tuple[Literal["nvfp4", "mxfp4"], ...] = ("nvfp4", "mxfp4")
SIZES = Sizes(8, 3, 192, 96)
MOE_CASES = [case for kind in MOE_FORMATS for case in moe_cases(kind)]
MOE_CASES += [MoeCase(kind, Sizes(4, 2, 320, 160), 4) for kind in MOE_FORMATS]


@each_row("case", MOE_CASES)
def test_right_experts_pass(case: MoeCase) -> None:
    assert run_moe_case(case, plain_moe(), "cpu").detail == ""


def test_labels_tell_cases_of_experts_apart() -> None:
    assert len({case.label for case in MOE_CASES}) == len(MOE_CASES)


WRONG_EXPERTS = {
    "gate for up": Wrong(gate_is_up=True),
    "no limit": Wrong(no_limit=True),
    "no 1 beside up": Wrong(no_shift=True),
    "SiLU for SwiGLU": Wrong(alpha_one=True),
    "no biases": Wrong(no_biases=True),
    "an expert of one token left out": Wrong(dropped=(2, 1)),
    "equal weights": Wrong(equal_weights=True),
}


@each_row(("what", "kind"), list(product(WRONG_EXPERTS, MOE_FORMATS)))
def test_wrong_arithmetic_is_seen(what: str, kind: Literal["nvfp4", "mxfp4"]) -> None:
    case = MoeCase(kind, SIZES, 5, "swiglu")
    assert "wrong" in run_moe_case(case, plain_moe(WRONG_EXPERTS[what]), "cpu").detail


@each_row("name", ["gate_up", "down"])
@each_row("kind", MOE_FORMATS)
def test_weights_of_another_expert_are_seen(name: str, kind: Literal["nvfp4", "mxfp4"]) -> None:
    def rotated(layer: ExpertsLayer) -> object:
        weight = getattr(layer, name)
        return plain_moe()(
            replace(layer, **{name: replace(weight, packed=weight.packed.roll(1, dims=0))})
        )

    assert "wrong" in run_moe_case(MoeCase(kind, SIZES, 5), rotated, "cpu").detail  # type: ignore[arg-type]


FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8", "bf16")
CASES = [case for kind in FORMATS for case in dense_cases(kind)]
CASES += [DenseCase(kind, (64, 2880), 8) for kind in FORMATS]
USUAL = DenseCase("nvfp4", (48, 448), 3, bias=True)

Change = Callable[[torch.Tensor], torch.Tensor]


@each_row("case", CASES)
def test_right_arithmetic_passes(case: DenseCase) -> None:
    assert run_dense_case(case, plain_linear(), "cpu").detail == ""


def test_labels_tell_cases_apart() -> None:
    assert len({case.label for case in CASES}) == len(CASES)


def changed(edit: Callable[[torch.Tensor], object]) -> Change:
    """A copy of the decoded weight with something done to it."""

    def change(decoded: torch.Tensor) -> torch.Tensor:
        copy = decoded.clone()
        edit(copy)
        return copy

    return change


WRONG_WEIGHTS: dict[str, Change] = {
    "all doubled": lambda w: w * 2,
    "one block doubled": changed(lambda w: w[5, 16:32].mul_(2)),
    "one element lost": changed(lambda w: w[47, 447].zero_()),
    "neighbours swapped": lambda w: w.unflatten(-1, (-1, 2)).flip(-1).flatten(-2),
    "two rows swapped": lambda w: w[[1, 0, *range(2, 48)]],
    "a block further": lambda w: w.roll(16, dims=-1),
    "last half unit lost": changed(lambda w: w[:, 384:].zero_()),
    "sign lost": torch.abs,
}


@each_row("what", WRONG_WEIGHTS)
def test_wrong_weights_are_seen(what: str) -> None:
    assert "wrong" in run_dense_case(USUAL, plain_linear(WRONG_WEIGHTS[what]), "cpu").detail


WRONG_RESULTS: dict[str, Change] = {
    "tokens rotated": lambda y: y.roll(1, dims=0),
    "one element off by 1 %": changed(lambda y: y[2, 3].mul_(1.01)),
    "NaN in one token": changed(lambda y: y[1, 0].fill_(torch.nan)),
}


@pytest.mark.parametrize("what", WRONG_RESULTS)
def test_wrong_results_are_seen(what: str) -> None:
    linear = plain_linear(after=WRONG_RESULTS[what])
    assert "wrong" in run_dense_case(USUAL, linear, "cpu").detail


def test_a_dropped_bias_is_seen() -> None:
    assert "wrong" in run_dense_case(USUAL, plain_linear(biased=False), "cpu").detail


def test_leaked_nan_is_seen() -> None:
    case = DenseCase("mxfp4", (48, 448), 9, x="NaN and infinity")
    linear = plain_linear(after=lambda y: y + 0 * y.sum())
    assert "wrong" in run_dense_case(case, linear, "cpu").detail


def test_writing_beside_the_result_is_seen() -> None:
    def beyond(weight: object) -> Callable[..., object]:
        right = plain_linear()(weight)  # type: ignore[arg-type]

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            right(x, bias, out)
            return out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()

        return compute

    assert "1 elements written outside" in run_dense_case(USUAL, beyond, "cpu").detail


def test_what_is_not_written_is_seen() -> None:
    def partly(weight: object) -> Callable[..., object]:
        right = plain_linear()(weight)  # type: ignore[arg-type]

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            return right(x[:2], bias, out[:2])

        return compute

    assert run_dense_case(USUAL, partly, "cpu").detail == "48 of 144 elements not written"


def test_results_that_change_are_seen() -> None:
    def drifting(weight: object) -> Callable[..., object]:
        right = plain_linear()(weight)  # type: ignore[arg-type]
        calls = []

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            calls.append(1)
            right(x, bias, out)
            return out.view(torch.int16)[0, 0].add_(len(calls) - 1)

        return compute

    assert run_dense_case(USUAL, drifting, "cpu").detail == "a second run gives other bits"


def test_a_refusal_passes_only_where_it_is_an_answer() -> None:
    def refusing(weight: object) -> Callable[..., object]:
        raise KernelError("not this one")

    assert run_dense_case(USUAL, refusing, "cpu").detail == "refused: not this one"
    case = DenseCase("nvfp4", (48, 448), 3, "NaN scales", may_refuse=True)
    assert run_dense_case(case, refusing, "cpu").detail == ""
