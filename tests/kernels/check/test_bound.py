"""The bounds hold for plain float32 and bfloat16 arithmetic, and for little more than that."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.candidate import RouterLayer
from spark_prof.kernels.check.oracles import (
    Expected,
    activated,
    exact,
    linear_oracle,
    rounded,
    routing_oracle,
)
from spark_prof.kernels.check.verdict import judge
from tests.rows import each_row

BF16 = torch.bfloat16


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(BF16)


def router(experts: int, top_k: int) -> RouterLayer:
    return RouterLayer("", experts, top_k, True, "softmax", None, 1.0)


@each_row("columns", [16, 448, 2880, 14336])
@each_row("parts", [1, 7])
def test_float32_sums_in_any_order_are_within(columns: int, parts: int) -> None:
    x, weight, bias = numbers(5, columns), numbers(33, columns, seed=1), numbers(33, seed=2)
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(3))
    total = torch.zeros(5, 33)
    for part in order.chunk(parts):
        total = total + x[:, part].float() @ weight[:, part].float().T
    got = (total + bias.float()).to(BF16)
    verdict = judge(got, linear_oracle(x, weight.double(), bias))
    assert verdict.detail == ""
    assert verdict.used is not None


@pytest.mark.parametrize("columns", [448, 2880])
def test_sums_kept_in_bfloat16_are_not(columns: int) -> None:
    x, weight = numbers(5, columns), numbers(33, columns, seed=1)
    total = torch.zeros(5, 33, dtype=BF16)
    for part in torch.arange(columns).chunk(columns // 16):
        total = total + (x[:, part].float() @ weight[:, part].float().T).to(BF16)
    assert "elements wrong" in judge(total, linear_oracle(x, weight.double(), None)).detail


def test_one_product_left_out_is_seen() -> None:
    x, weight = numbers(16, 448), numbers(64, 448, seed=1)
    broken = weight.clone()
    broken[17, 5] = 0
    got = (x.float() @ broken.float().T).to(BF16)
    verdict = judge(got, linear_oracle(x, weight.double(), None))
    assert "17)" in verdict.detail


def test_a_float32_sum_that_is_cut_off_in_place_of_rounded_is_within() -> None:
    x, weight = numbers(3, 2880).double(), numbers(9, 2880, seed=1).double()
    total = torch.zeros(3, 9, dtype=torch.float64)
    for column in range(2880):
        total = total + x[:, column, None] * weight[None, :, column]
        mantissa, exponent = torch.frexp(total)
        total = torch.ldexp(torch.trunc(mantissa * 2**24) / 2**24, exponent)
    assert judge(total.to(BF16), linear_oracle(x, weight, None)).detail == ""


def test_an_exact_result_must_be_the_nearest_bfloat16() -> None:
    x = torch.zeros(1, 32, dtype=BF16)
    x[0, 3] = 1
    weight = numbers(40, 32, scale=3.0).double()
    right = weight[:, 3].to(BF16)[None]
    expected = linear_oracle(x, weight, None)
    assert judge(right, expected).detail == ""
    neighbour = (right.view(torch.int16) + 1).view(BF16)
    assert "40 of 40" in judge(neighbour, expected).detail


def test_subnormal_results_are_kept() -> None:
    x = torch.full((1, 16), 2.0**-60, dtype=BF16)
    weight = torch.full((1, 16), 2.0**-68, dtype=torch.float64)
    expected = linear_oracle(x, weight, None)
    assert judge(torch.full((1, 1), 2.0**-124, dtype=BF16), expected).detail == ""
    assert judge(torch.zeros(1, 1, dtype=BF16), expected).detail != ""


def test_only_what_holds_nan_or_infinity_may_show_it() -> None:
    x, weight = numbers(4, 64), numbers(8, 64, seed=1)
    x[1, 3], x[2, 0] = torch.nan, torch.inf
    expected = linear_oracle(x, weight.double(), None)
    right = (x.float() @ weight.float().T).to(BF16)
    assert judge(right, expected).detail == ""
    leaked = right.clone()
    leaked[0, 0] = torch.nan
    assert "1 of 32" in judge(leaked, expected).detail
    hidden = right.clone()
    hidden[1, 5] = 0
    assert "1 of 32" in judge(hidden, expected).detail


def test_what_overflows_bfloat16_is_infinite() -> None:
    x = torch.full((1, 16), 2.0**60, dtype=BF16)
    weight = torch.stack([torch.full((16,), 2.0**63), torch.full((16,), 2.0**50)]).double()
    expected = linear_oracle(x, weight * 1.999, None)
    got = torch.tensor([[torch.inf, 2.0**114 * 1.999]], dtype=BF16)
    assert judge(got, expected).detail == ""
    got[0, 1] = torch.inf
    assert judge(got, expected).detail != ""


def test_rounding_allows_both_neighbours_only_where_a_tie_is_near() -> None:
    tie = 1 + 2.0**-8
    near = rounded(Expected(torch.tensor([tie]).double(), torch.tensor([1e-6]).double()))
    assert [float(near.value), float(near.error)] == [1.0, 2.0**-7]
    far = rounded(Expected(torch.tensor([1.001]).double(), torch.tensor([1e-6]).double()))
    assert [float(far.value), float(far.error)] == [1.0, 0.0]


@pytest.mark.parametrize(("alpha", "limit", "shift"), [(1.0, torch.inf, 0.0), (1.702, 7.0, 1.0)])
def test_activations_in_float32_are_within(alpha: float, limit: float, shift: float) -> None:
    gate = torch.linspace(-120, 120, 40001)
    up = torch.linspace(30, -30, 40001)
    got = gate.clamp(max=limit) / (1 + torch.exp(-alpha * gate.clamp(max=limit)))
    got = got * (up.clamp(-limit, limit) + shift)
    expected = activated(exact(gate), exact(up), alpha, limit, shift)
    assert judge(got, expected).detail == ""


@pytest.mark.parametrize(("alpha", "limit", "shift"), [(1.0, torch.inf, 0.0), (1.702, 7.0, 1.0)])
def test_an_error_grows_through_the_activation_by_no_more_than_said(
    alpha: float, limit: float, shift: float
) -> None:
    generator = torch.Generator().manual_seed(5)
    gate, up = (torch.randn(50000, generator=generator).double() * 6 for _ in range(2))
    off = torch.rand(50000, generator=generator).double() * 0.5
    moved = activated(exact(gate + off), exact(up - off), alpha, limit, shift).value
    allowed = activated(Expected(gate, off), Expected(up, off), alpha, limit, shift)
    assert judge(moved, allowed).detail == ""


def test_routing_orders_equals_by_their_number() -> None:
    logits = torch.tensor([[0.5, 2.0, 2.0, -1.0, 2.0]], dtype=BF16)
    experts, weights = routing_oracle(logits, router(5, 3))
    assert experts.tolist() == [[1, 2, 4]]
    assert judge(torch.full((1, 3), 1 / 3), weights).detail == ""


def test_routing_weights_in_float32_are_within() -> None:
    logits = numbers(200, 128, scale=20.0)
    experts, weights = routing_oracle(logits, router(128, 8))
    chosen = logits.float().gather(1, experts)
    got = torch.exp(chosen - chosen[:, :1])
    got = got / got.sum(-1, keepdim=True)
    assert judge(got, weights).detail == ""
    assert judge(torch.softmax(logits.float(), -1).gather(1, experts), weights).detail != ""
