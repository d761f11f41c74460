"""The router's kernel, beside what the cases of `check` try: choice, launch after launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import KernelCandidate, NormedExpertsLayer
from spark_prof.kernels.check.inputs import Sizes, make_activations, make_weight
from spark_prof.kernels.check.normed_experts_cases import NormedExpertsCase
from spark_prof.kernels.check.oracles import routing_oracle
from spark_prof.kernels.check.verdict import same_bits
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.normed_experts import build, make_router, norm_and_route
from tests.rows import each_row

SIZES = Sizes(66, 4, 192, 32)


def posed(case: NormedExpertsCase, device: str) -> tuple[NormedExpertsLayer, Any, Any]:
    """A case's layer, x and residual."""
    made = case.pose(KernelCandidate("k", "layer", build, is_custom=False), device)
    assert isinstance(made.layer, NormedExpertsLayer)
    return made.layer, *made.arguments


@pytest.mark.slow
@each_row("float_logits", [False, True])
@each_row("tokens", [1, 5])
def test_the_choice_goes_by_rounded_logits_or_by_exact_ones(
    tokens: int, float_logits: bool, device: str
) -> None:
    case = NormedExpertsCase("nvfp4", SIZES, tokens, "swiglu", "ties")
    layer, x, residual = posed(case, device)
    router = make_router(layer)
    normed, stream, routing = norm_and_route(
        x, residual, replace(router, float_logits=float_logits)
    )
    assert same_bits(stream, (x.float() + residual.float()).bfloat16())
    assert router.bias is not None
    logits = normed.double() @ router.weight.double().T + router.bias.double()
    by_either = [routing_oracle(each, router.choice)[0] for each in (logits.bfloat16(), logits)]
    assert not torch.equal(*by_either)
    assert torch.equal(routing.experts.long(), by_either[float_logits])


def test_what_a_token_gets_does_not_depend_on_the_others(device: str) -> None:
    layer, x, residual = posed(NormedExpertsCase("nvfp4", SIZES, 7), device)
    run = build(layer).run
    together = run(x, residual)
    alone = [run(x[i : i + 1], residual[i : i + 1]) for i in range(7)]
    for all_of_it, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert same_bits(all_of_it, torch.cat(parts))


def test_one_layer_runs_again_and_again(device: str) -> None:
    layer, _, residual = posed(NormedExpertsCase("nvfp4", SIZES, 5), device)
    used = build(layer).run
    for tokens in (5, 1, 3):
        other = make_activations("plain", tokens, SIZES.hidden, tokens, device)
        expected = build(layer).run(other, residual[:tokens])
        for got, right in zip(used(other, residual[:tokens]), expected, strict=True):
            assert same_bits(got, right)


def test_a_sigmoid_with_a_correction(device: str) -> None:
    layer, x, residual = posed(NormedExpertsCase("nvfp4", SIZES, 3), device)
    correction = torch.linspace(0.4, -0.4, SIZES.experts, device=device)
    scored = replace(layer.experts.router, scoring="sigmoid", correction=correction, scale=2.5)
    router = make_router(replace(layer, experts=replace(layer.experts, router=scored)))
    normed, _, routing = norm_and_route(x, residual, replace(router, float_logits=True))
    experts, weights = routing_oracle(normed.double() @ router.weight.double().T, scored)
    assert torch.equal(routing.experts.long(), experts)
    assert torch.allclose(routing.weights.double(), weights.value, rtol=1e-4)


def with_gate(layer: NormedExpertsLayer, weight: Any) -> NormedExpertsLayer:
    return replace(layer, gate=replace(layer.gate, weight=weight))


@each_row("what", ["quantized", "a column less", "an expert less", "too wide", "a norm more"])
def test_layers_that_do_not_fit_are_refused(what: str, device: str) -> None:
    layer, *_ = posed(NormedExpertsCase("nvfp4", SIZES, 3), device)
    gate = layer.gate.weight
    assert isinstance(gate, torch.Tensor)
    wide = torch.zeros(66, 8256, dtype=torch.bfloat16, device=device)
    wrong = {
        "quantized": lambda: with_gate(layer, make_weight("nvfp4", "plain", (66, 192), 1, device)),
        "a column less": lambda: with_gate(layer, gate[:, 1:].contiguous()),
        "an expert less": lambda: with_gate(layer, gate[1:]),
        "too wide": lambda: replace(
            with_gate(layer, wide), norm=replace(layer.norm, weight=wide[0])
        ),
        "a norm more": lambda: replace(layer, norm=replace(layer.norm, weight=wide[0, :200])),
    }[what]()
    with pytest.raises(KernelError, match="router's matrix"):
        build(wrong)
