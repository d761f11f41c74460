"""A layer computes with the active side's kernel, and with vLLM's own where there is none."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spark_prof.swaps.build import SwapPoint
from spark_prof.swaps.guard import TRIAL, GuardedReplacement
from spark_prof.swaps.layer_dispatch import (
    register_ops,
    swap_choice,
    swap_experts,
    swap_linear,
    swap_norm,
)
from spark_prof.swaps.swap_settings import SIDES
from tests.swaps.layers import Linear, Runner, TinyRMSNorm, replacing

pytestmark = pytest.mark.usefixtures("sides")


def _guarded(run: Any, tokens: int = 0) -> GuardedReplacement:
    return GuardedReplacement("layer (slot=kernel)", "slot=kernel", replacing(run, tokens))


def _fails(*_: Any) -> Any:
    raise RuntimeError("no kernel image\nis available")


@pytest.mark.parametrize("compiled", [False, True])
class TestLinear:
    """A matrix, called by Python and through the operator that torch.compile sees."""

    def _layer(self, guarded: GuardedReplacement, compiled: bool) -> tuple[Linear, Any]:
        register_ops()
        layer = Linear(24, 16)
        swap_linear(SwapPoint("qkv", "qkv_proj", layer, "matrix"), {"b": guarded}, compiled)
        if not compiled:
            return layer, layer
        return layer, torch.compile(layer, fullgraph=True, dynamic=False)

    @pytest.mark.slow
    def test_each_side_has_its_own_kernel(self, compiled: bool) -> None:
        guarded = _guarded(lambda x, _: x.new_full((x.shape[0], 24), 3.0))
        layer, call = self._layer(guarded, compiled)
        x = torch.randn(4, 16)
        own = torch.nn.functional.linear(x, layer.weight)
        for side, expected in (("a", own), ("b", torch.full((4, 24), 3.0)), ("a2", own)):
            SIDES.switch(side)
            torch.testing.assert_close(call(x), expected)
        assert guarded.calls == {"b": 1}

    def test_what_a_kernel_does_not_take_is_vllms(self, compiled: bool) -> None:
        guarded = _guarded(lambda x, _: x.new_zeros(x.shape[0], 24), tokens=2)
        layer, call = self._layer(guarded, compiled)
        SIDES.switch("b")
        x = torch.randn(3, 16)
        torch.testing.assert_close(call(x), torch.nn.functional.linear(x, layer.weight))
        assert not call(x[:2]).any()

    def test_a_kernel_that_raises_is_off_with_one_line(
        self, compiled: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        guarded = _guarded(_fails)
        layer, call = self._layer(guarded, compiled)
        SIDES.switch("b")
        x = torch.randn(2, 16)
        own = torch.nn.functional.linear(x, layer.weight)
        with caplog.at_level("WARNING"):
            for _ in range(3):
                torch.testing.assert_close(call(x), own)
        assert [record.message for record in caplog.records] == [
            "layer (slot=kernel): vLLM's own kernel runs from now on, here and where this happens "
            "again: RuntimeError: no kernel image is available"
        ]
        assert not guarded.live
        assert guarded.replacement is None


def test_a_matrix_whose_forward_goes_past_its_method_is_swapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As DeepSeek-V3's fused_qkv_a_proj: side a has vLLM's own kernel still."""

    class FusedLinear(Linear):
        _use_min_latency_gemm = True

        def forward(self, x: torch.Tensor) -> Any:
            return x @ self.weight.T + 1 if self._use_min_latency_gemm else super().forward(x)

    own = SimpleNamespace(min_latency_fused_qkv_a_proj=lambda x, weight: x @ weight.T + 1)
    monkeypatch.setattr(torch.ops, "vllm", own, raising=False)
    layer = FusedLinear(24, 16)
    guarded = _guarded(lambda x, _: x.new_full((x.shape[0], 24), 3.0), tokens=2)
    x = torch.randn(3, 16)
    expected = layer(x)
    swap_linear(SwapPoint("qkv", "qkv_proj", layer, "matrix"), {"b": guarded}, compiled=False)
    torch.testing.assert_close(layer(x), expected)
    SIDES.switch("b")
    torch.testing.assert_close(layer(x), expected)
    assert layer(x[:2]).eq(3).all()


def test_layers_that_share_a_quantization_method_are_swapped_one_by_one() -> None:
    one, other = Linear(8, 16), Linear(8, 16)
    other.quant_method = one.quant_method
    guarded = _guarded(lambda x, _: x.new_zeros(x.shape[0], 8))
    swap_linear(SwapPoint("o", "o_proj", one, "matrix"), {"b": guarded}, compiled=False)
    SIDES.switch("b")
    x = torch.randn(2, 16)
    assert not one(x).any()
    torch.testing.assert_close(other(x), torch.nn.functional.linear(x, other.weight))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_a_norm_chooses_and_leaves_its_arguments_alone(compiled: bool, residual: bool) -> None:
    register_ops()
    layer = TinyRMSNorm(16)
    guarded = _guarded(
        lambda x, r: x.new_zeros(x.shape) if r is None else (x.new_zeros(x.shape), x + r)
    )
    swap_norm(SwapPoint("norm", "norm", layer, "norm"), {"b": guarded}, compiled)
    call = torch.compile(layer, fullgraph=True) if compiled else layer
    x, other = torch.randn(3, 16), torch.randn(3, 16) if residual else None
    kept = x.clone()
    own = layer.forward_native(x, other)
    torch.testing.assert_close(call(x, other), own)
    SIDES.switch("b")
    swapped = call(x, other)
    assert not (swapped[0] if residual else swapped).any()
    if residual:
        torch.testing.assert_close(swapped[1], own[1])
    torch.testing.assert_close(x, kept)


@pytest.mark.parametrize("monolithic", [False, True])
@pytest.mark.parametrize("padding", [0, 4])
class TestExperts:
    """A mixture of experts, for kernels of vLLM that route by themselves and those that do not."""

    def test_each_side_has_its_own_kernel(self, monolithic: bool, padding: int) -> None:
        runner = Runner(monolithic=monolithic, padding=padding)
        x, logits = torch.randn(3, 16 + padding), torch.randn(3, 8)
        own = runner(x, logits)
        seen: list[torch.Size] = []

        def experts(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            seen.extend((x.shape, logits.shape))
            return torch.ones_like(x)

        swap_experts(SwapPoint("moe", "experts", runner, "experts"), {"b": _guarded(experts)})
        torch.testing.assert_close(runner(x, logits), own)
        SIDES.switch("b")
        swapped = runner(x, logits)
        assert seen == [(3, 16), (3, 8)]
        assert swapped.shape == own.shape
        assert swapped[:, :16].eq(1).all()
        assert not swapped[:, 16:].any()

    def test_a_kernel_that_raises_loses_no_token(self, monolithic: bool, padding: int) -> None:
        runner = Runner(monolithic=monolithic, padding=padding)
        x, logits = torch.randn(3, 16 + padding), torch.randn(3, 8)
        own = runner(x, logits)
        swap_experts(SwapPoint("moe", "experts", runner, "experts"), {"b": _guarded(_fails)})
        SIDES.switch("b")
        for _ in range(2):
            torch.testing.assert_close(runner(x, logits), own)


def test_a_router_is_swapped_without_its_experts() -> None:
    runner = Runner()
    x, logits = torch.randn(3, 16), torch.randn(3, 8)

    def first_two(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = logits.shape[0]
        return torch.full((count, 2), 0.5), torch.tensor([[0, 1]] * count, dtype=torch.int32)

    swap_choice(SwapPoint("router", "experts", runner, "choice"), {"b": _guarded(first_two)})
    SIDES.switch("b")
    weight = runner.routed_experts.weight
    expected = 0.5 * (x @ weight[0].T + x @ weight[1].T)
    torch.testing.assert_close(runner(x, logits), expected)


def test_experts_and_router_swapped_together_leave_the_choice_to_the_experts() -> None:
    runner = Runner()
    swap_choice(SwapPoint("router", "experts", runner, "choice"), {"b": _guarded(_fails)})
    swap_experts(
        SwapPoint("moe", "experts", runner, "experts"),
        {"b": _guarded(lambda x, _: torch.ones_like(x))},
    )
    SIDES.switch("b")
    assert runner(torch.randn(2, 16), torch.randn(2, 8)).eq(1).all()


@pytest.mark.parametrize("kind", [None, torch.int32, torch.int64, torch.uint32])
def test_a_swapped_choice_has_the_index_type_that_is_asked_for(kind: torch.dtype | None) -> None:
    runner = Runner()

    def last(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        experts = torch.full((len(logits), 2), 7, dtype=torch.int32)
        return torch.ones(len(logits), 2), experts

    swap_choice(SwapPoint("router", "experts", runner, "choice"), {"b": _guarded(last)})
    SIDES.switch("b")
    asked = {} if kind is None else {"topk_indices_dtype": kind}
    weights, experts = runner.router.select_experts(torch.zeros(3, 16), torch.zeros(3, 8), **asked)
    assert weights.dtype == torch.float32
    assert experts.dtype == (kind or torch.int32)
    assert experts.tolist() == [[7, 7]] * 3


def test_tokens_are_all_but_the_last_axis() -> None:
    guarded = _guarded(lambda x, _: x.new_full((x.shape[0], 24), float(x.shape[0])), tokens=6)
    layer = Linear(24, 16)
    swap_linear(SwapPoint("qkv", "q", layer, "matrix"), {"b": guarded}, compiled=False)
    SIDES.switch("b")
    assert layer(torch.randn(2, 3, 16)).tolist() == torch.full((2, 3, 24), 6.0).tolist()
    x = torch.randn(2, 4, 16)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight))


def test_with_no_token_vllms_own_kernels_run() -> None:
    """A rank without requests steps with an empty batch; no replacement ever sees one."""
    guarded = _guarded(_fails)
    layer, norm, mixture, router = Linear(24, 16), TinyRMSNorm(16), Runner(), Runner()
    swap_linear(SwapPoint("qkv", "q", layer, "matrix"), {"b": guarded}, compiled=False)
    swap_norm(SwapPoint("norm", "n", norm, "norm"), {"b": guarded}, compiled=False)
    swap_experts(SwapPoint("moe", "m", mixture, "experts"), {"b": guarded})
    swap_choice(SwapPoint("router", "r", router, "choice"), {"b": guarded})
    SIDES.switch("b")
    x, logits = torch.zeros(0, 16), torch.zeros(0, 8)
    assert layer(x).shape == (0, 24)
    assert norm(x).shape == (0, 16)
    for runner in (mixture, router):
        assert runner(x, logits).shape == (0, 16)
    assert guarded.live
    assert not guarded.calls


@pytest.mark.parametrize("side", ["b", TRIAL])
def test_weights_of_a_kernel_that_fails_while_serving_are_held(side: str) -> None:
    """CUDA graphs captured before go on reading them; on trial there is none."""
    weights: Any = torch.ones(4)
    held = weakref.ref(weights)

    def run(x: torch.Tensor, weights: torch.Tensor = weights) -> torch.Tensor:
        return weights * x if len(x) == 1 else _fails()

    guarded = _guarded(run)
    guarded.run(side, torch.ones(1))
    guarded.run(side, torch.ones(2))
    assert not guarded.live
    del weights, run
    gc.collect()
    assert (held() is None) == (side == TRIAL)
