"""The cases of routing: right routing passes each of them, and each kind of wrong one is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.check.cases import Route, RoutingCase, routing_cases, run_routing_case
from spark_prof.kernels.check.oracles import RoutingRule
from tests.kernels.check.plain import plain_route
from tests.rows import each_row

CASES = list(routing_cases())
USUAL = RoutingCase(32, 4, 5)

Routed = tuple[torch.Tensor, torch.Tensor]


@each_row("case", CASES)
def test_right_routing_passes(case: RoutingCase) -> None:
    assert run_routing_case(case, plain_route, "cpu").detail == ""


def test_labels_tell_cases_apart() -> None:
    assert len({case.label for case in CASES}) == len(CASES)


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
    assert run_routing_case(USUAL, route, "cpu").detail != ""


def test_the_higher_number_among_equals_is_seen() -> None:
    def from_behind(logits: torch.Tensor, top_k: int, rule: RoutingRule) -> Routed:
        experts, weights = plain_route(logits.flip(-1), top_k)
        return logits.shape[1] - 1 - experts, weights

    assert run_routing_case(RoutingCase(32, 4, 5, "ties"), from_behind, "cpu").detail != ""
