"""Routing and experts, beside what the cases of `check` try: the plan, configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import Activation, Layer, Replacement
from spark_prof.kernels.check.cases import MoeCase
from spark_prof.kernels.check.inputs import (
    Logits,
    Sizes,
    make_activations,
    make_layer,
    make_logits,
)
from spark_prof.kernels.check.verdict import same_bits
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import (
    MoeConfig,
    build,
    default_config,
    moe,
    pack_experts,
)
from spark_prof.kernels.routing import route
from tests.kernels.check.plain import kept, said
from tests.rows import each_row


@each_row("logits", ["plain", "the same experts", "ties", "NaN"])
@each_row("tokens", [1, 7, 16])
def test_the_plan_lists_each_active_expert_once_with_all_of_its_tokens(
    logits: Logits, tokens: int, device: str
) -> None:
    routing = route(make_logits(logits, tokens, 32, torch.bfloat16, device), 4)
    active, plan = routing.plan[1 : 1 + int(routing.plan[0])].tolist(), routing.plan.tolist()
    chosen = routing.experts.flatten().tolist()
    assert active == sorted(set(chosen))
    assert plan[0] == len(active)
    starts, entries = plan[1 + 256 :][: len(active) + 1], plan[1 + 256 + 257 :]
    assert starts[0] == 0
    assert starts[-1] == tokens * 4
    for at, expert in enumerate(active):
        mine = entries[starts[at] : starts[at + 1]]
        assert mine == [entry for entry, choice in enumerate(chosen) if choice == expert]


@each_row(("tokens", "experts"), [(5, 32), (16, 128), (40, 8)])
def test_logits_are_what_their_kind_says(tokens: int, experts: int) -> None:
    kinds = get_args(Logits)
    made = {kind: make_logits(kind, tokens, experts, torch.float64, "cpu") for kind in kinds}
    plain = made["plain"]
    for kind, values in made.items():
        assert values.shape == (tokens, experts)
        assert same_bits(values, make_logits(kind, tokens, experts, torch.float64, "cpu"))
    assert same_bits(made["the same experts"], plain[:1].expand(tokens, -1))
    assert set(made["ties"].flatten().tolist()) <= {-1.0, 0.0, 1.0}
    # Of normal numbers some two thirds are within one deviation of the mean.
    within = (made["far apart"].abs() < 150).double().mean()
    assert 0.6 < within < 0.77
    assert (made["masked"] == -torch.inf).sum() == tokens * (experts // 2)
    nan = torch.isnan(made["NaN"])
    assert (nan.sum(), nan[0].sum()) == (1, 1)
    assert same_bits(made["NaN"][~nan], plain[~nan])
    turn = made["every expert in turn"]
    share = -(-experts // tokens)
    for token in range(-(-experts // share)):
        first = turn[token].topk(min(share, experts - token * share)).indices
        assert sorted(first.tolist()) == [*range(token * share, token * share + len(first))]


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


Kind = Literal["nvfp4", "mxfp4"]
FORMATS: tuple[Kind, ...] = ("nvfp4", "mxfp4")
SMALL = Sizes(8, 3, 192, 96)
UNEVEN = Sizes(8, 3, 640, 96)
"""Five times 128 wide: of two warps with two units each in flight one has none left at the end."""
USUAL = default_config(SMALL.hidden, 3)
CONFIGURED: list[tuple[MoeConfig, Sizes, Kind, int]] = [
    (replace(USUAL, warps=1, split=1, depth=1, down_warps=1, down_depth=1), SMALL, "nvfp4", 3),
    (replace(USUAL, warps=4, split=4, depth=3, down_warps=3, down_depth=2), SMALL, "mxfp4", 9),
    (replace(USUAL, warps=4, split=2, depth=2), UNEVEN, "nvfp4", 3),
]
"""One warp for all, and warps without work."""


@pytest.mark.slow
@each_row(("config", "sizes", "kind", "tokens"), CONFIGURED)
def test_a_configuration(
    config: MoeConfig, sizes: Sizes, kind: Kind, tokens: int, device: str
) -> None:
    def configured(layer: Layer) -> Replacement:
        run = build(layer).run
        return kept(lambda x, logits, out: run(x, logits, out, config))

    assert said(MoeCase(kind, sizes, tokens, "swiglu"), configured, device) == ""


def test_what_a_token_gets_does_not_depend_on_the_others(device: str) -> None:
    layer = make_layer("mxfp4", SMALL, "swiglu", device)
    biases = (layer.gate_up_bias, layer.down_bias)
    packed = pack_experts(layer.gate_up, layer.down, *biases, layer.activation)  # type: ignore[arg-type]
    x = make_activations("plain", 8, 192, 2, device)
    logits = make_logits("the same experts", 8, 8, torch.bfloat16, device)
    together = moe(x, logits, packed, layer.router)
    alone = [moe(x[i : i + 1], logits[i : i + 1], packed, layer.router) for i in range(8)]
    assert same_bits(together, torch.cat(alone))


def test_weights_that_do_not_fit_each_other_are_refused(device: str) -> None:
    nvfp4, mxfp4 = (make_layer(kind, SMALL, "silu", device) for kind in FORMATS)
    other = make_layer("nvfp4", Sizes(8, 3, 192, 64), "silu", device)
    silu = Activation("silu")
    for gate_up, down in ((nvfp4.gate_up, mxfp4.down), (nvfp4.gate_up, other.down)):
        with pytest.raises(KernelError):
            pack_experts(gate_up, down, None, None, silu)
    short = torch.zeros(8, 191, dtype=torch.bfloat16, device=device)
    with pytest.raises(KernelError, match="down_bias"):
        pack_experts(nvfp4.gate_up, nvfp4.down, None, short, silu)
