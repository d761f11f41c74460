"""Routing against exact results: numbers of tokens and experts, ties, each scheme; the plan too."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.check.cases import Logits, make_logits
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.routing import route
from tests.rows import each_row


@each_row("logits", ["plain", "the same experts", "ties", "NaN"])
@each_row("tokens", [1, 7, 16])
def test_the_plan_lists_each_active_expert_once_with_all_of_its_tokens(
    logits: Logits, tokens: int, device: str
) -> None:
    routing = route(make_logits(logits, tokens, 32, torch.bfloat16, device), 4)
    active, plan = routing.active.tolist(), routing.plan.tolist()
    chosen = routing.experts.flatten().tolist()
    assert active == sorted(set(chosen))
    assert plan[0] == len(active)
    starts, entries = plan[1 + 256 :][: len(active) + 1], plan[1 + 256 + 257 :]
    assert starts[0] == 0
    assert starts[-1] == tokens * 4
    for at, expert in enumerate(active):
        mine = entries[starts[at] : starts[at + 1]]
        assert mine == [entry for entry, choice in enumerate(chosen) if choice == expert]


@each_row("top_k", [-1, 0, 17, 33])
def test_more_experts_than_there_are_or_can_be_are_refused(top_k: int, device: str) -> None:
    with pytest.raises(KernelError, match="cannot choose"):
        route(make_logits("plain", 3, 32, torch.bfloat16, device), top_k)


@each_row(
    "correction", [torch.zeros(31), torch.zeros(32, dtype=torch.bfloat16), torch.zeros(64)[::2]]
)
def test_corrections_that_do_not_fit_are_refused(correction: torch.Tensor, device: str) -> None:
    logits = make_logits("plain", 3, 32, torch.bfloat16, device)
    with pytest.raises(KernelError, match="correction"):
        route(logits, 4, correction=correction.to(device))
