"""The cases: right arithmetic passes each of them, and each kind of wrong one is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import (
    Builder,
    Format,
    KernelCandidate,
    Layer,
    Replacement,
    RouterLayer,
)
from spark_prof.kernels.check.cases import (
    Case,
    DenseCase,
    MoeCase,
    RoutingCase,
    dense_cases,
    moe_cases,
    routing_cases,
)
from spark_prof.kernels.check.inputs import Sizes
from spark_prof.kernels.check.normed_cases import NormedCase
from spark_prof.kernels.check.normed_experts_cases import NormedExpertsCase
from spark_prof.kernels.kernel_error import KernelError
from tests.kernels.check.plain import kept, plain_linear, plain_moe, plain_route, said
from tests.rows import each_row

USUAL_ROUTING = RoutingCase(32, 4, 5)

Routed = tuple[torch.Tensor, torch.Tensor]


def routing_by(route: Callable[[torch.Tensor, RouterLayer], Routed]) -> Builder:
    def build(layer: Layer) -> Replacement:
        assert isinstance(layer, RouterLayer)
        return kept(lambda logits: route(logits, layer))

    return build


def lowest(logits: torch.Tensor, router: RouterLayer) -> Routed:
    return plain_route(-logits, router)


def all_experts_count(logits: torch.Tensor, router: RouterLayer) -> Routed:
    _, experts = plain_route(logits, router)
    return torch.softmax(logits.float(), -1).gather(1, experts.long()), experts


def one_too_few(logits: torch.Tensor, router: RouterLayer) -> Routed:
    return plain_route(logits, replace(router, top_k=router.top_k - 1))


def beyond(logits: torch.Tensor, router: RouterLayer) -> Routed:
    weights, experts = plain_route(logits, router)
    experts[0, 0] = logits.shape[1]
    return weights, experts


def rounded_weights(logits: torch.Tensor, router: RouterLayer) -> Routed:
    weights, experts = plain_route(logits, router)
    return weights.bfloat16().float(), experts


@each_row("route", [lowest, all_experts_count, one_too_few, beyond, rounded_weights])
def test_wrong_routing_is_seen(route: Any) -> None:
    assert said(USUAL_ROUTING, routing_by(route)) != ""


def test_the_higher_number_among_equals_is_seen() -> None:
    def from_behind(logits: torch.Tensor, router: RouterLayer) -> Routed:
        weights, experts = plain_route(logits.flip(-1), router)
        return weights, logits.shape[1] - 1 - experts

    assert said(RoutingCase(32, 4, 5, "ties"), routing_by(from_behind)) != ""


MOE_FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8", "fp8_blocks", "bf16")


MOE_CASES = [case for kind in MOE_FORMATS for case in moe_cases(kind)]
MOE_CASES += [MoeCase(kind, Sizes(4, 2, 320, 160), 4) for kind in MOE_FORMATS]


FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8", "fp8_blocks", "int4", "bf16")
CASES = [case for kind in FORMATS for case in dense_cases(kind)]
CASES += [DenseCase(kind, (64, 2880), 8) for kind in FORMATS]
USUAL = DenseCase("nvfp4", (48, 448), 3, bias=True)

Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.slow
@each_row(
    ("cases", "builder"),
    [
        (CASES, plain_linear()),
        (MOE_CASES, plain_moe),
        (list(routing_cases()), routing_by(plain_route)),
    ],
)
def test_right_arithmetic_passes_and_labels_tell_cases_apart(
    cases: list[Case], builder: Builder
) -> None:
    assert {case.label: said(case, builder) for case in cases} == {c.label: "" for c in cases}
    assert len({case.label for case in cases}) == len(cases)


@each_row(
    ("case", "words"),
    [
        (NormedCase("nvfp4", (48, 448), 3, residual=False), ""),
        (
            NormedCase("nvfp4", (48, 448), 3, bias=True, epsilon=0.5),
            ", epsilon 0.5, residual, bias",
        ),
        (NormedCase("nvfp4", (48, 448), 3, norm=torch.float32), ", a norm of float32, residual"),
    ],
)
def test_the_label_of_a_normed_case_is_what_a_kernel_gets(case: NormedCase, words: str) -> None:
    assert case.label == f"nvfp4, 3 tokens, 48 x 448{words}"
    posed = case.pose(KernelCandidate("k", "layer", plain_linear()), "cpu")
    _, residual, bias = posed.arguments
    norm: Any = posed.layer
    assert (residual is not None, bias is not None) == ("residual" in words, "bias" in words)
    assert (norm.norm.weight.dtype == torch.float32) == ("float32" in words)
    assert (norm.norm.epsilon == 0.5) == ("epsilon" in words)


@each_row(
    ("case", "words"),
    [
        (NormedExpertsCase("mxfp4", Sizes(8, 3, 192, 96), 3), ""),
        (
            NormedExpertsCase("mxfp4", Sizes(8, 3, 192, 96), 3, always=1, gated=True),
            ", 1 taken always, gated",
        ),
    ],
)
def test_the_label_of_normed_experts_says_what_every_token_takes(
    case: NormedExpertsCase, words: str
) -> None:
    assert case.label == f"mxfp4, silu, 3 tokens, 3 of 8 experts, 192 x 96{words}, residual"


def changed(edit: Callable[[torch.Tensor], object]) -> Change:
    """A copy of the decoded weight with something done to it."""

    def change(decoded: torch.Tensor) -> torch.Tensor:
        copy = decoded.clone()
        edit(copy)
        return copy

    return change


WRONG_RESULTS: dict[str, Change] = {
    "tokens rotated": lambda y: y.roll(1, dims=0),
    "one element off by 1 %": changed(lambda y: y[2, 3].mul_(1.01)),
    "NaN in one token": changed(lambda y: y[1, 0].fill_(torch.nan)),
}


@pytest.mark.parametrize("what", WRONG_RESULTS)
def test_wrong_results_are_seen(what: str) -> None:
    linear = plain_linear(after=WRONG_RESULTS[what])
    assert "wrong" in said(USUAL, linear)


def test_leaked_nan_is_seen() -> None:
    case = DenseCase("mxfp4", (48, 448), 9, x="NaN and infinity")
    linear = plain_linear(after=lambda y: y + 0 * y.sum())
    assert "wrong" in said(case, linear)


def around(change: Callable[..., object]) -> Builder:
    """A right kernel; `change` calls it with what it was given, the result the last of it."""

    def build(layer: Layer) -> Replacement:
        right = plain_linear()(layer)
        assert right is not None

        def compute(*given: Any) -> torch.Tensor:
            change(right.run, *given)
            out: torch.Tensor = given[-1]
            return out

        return kept(compute)

    return build


def test_writing_beside_the_result_is_seen() -> None:
    def beyond(run: Any, x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
        run(x, bias, out)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()

    assert "1 elements written outside" in said(USUAL, around(beyond))


def test_what_is_not_written_is_seen() -> None:
    def partly(run: Any, x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
        run(x[:2], bias, out[:2])

    assert said(USUAL, around(partly)) == "48 of 144 elements not written"


def test_results_that_change_are_seen() -> None:
    calls = []

    def drifting(run: Any, x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(1)
        run(x, bias, out)
        out.view(torch.int16)[0, 0].add_(len(calls) - 1)

    assert said(USUAL, around(drifting)) == "a second run gives other bits"


def test_a_refusal_passes_only_where_it_is_an_answer() -> None:
    def refusing(layer: Layer) -> Replacement:
        raise KernelError("not this one")

    assert said(USUAL, refusing) == "refused: not this one"
    case = DenseCase("nvfp4", (48, 448), 3, "NaN scales", may_refuse=True)
    assert said(case, refusing) == ""
