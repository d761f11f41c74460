"""Swapped matrices of shared experts run where vLLM runs those, beside swapped experts too."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch

from spark_prof.swaps.build import build_all, find_points
from spark_prof.swaps.guard import GuardedReplacement
from spark_prof.swaps.layer_dispatch import swap_experts, swap_linear
from spark_prof.swaps.swap_settings import SIDES, Swap
from tests.rows import each_row
from tests.swaps.layers import Linear, replacing

from . import vllm_layers
from .vllm_layers import HIDDEN, INNER

pytestmark = pytest.mark.usefixtures("vllm_world", "sides")


class Mlp(torch.nn.Module):
    """As vLLM's models have shared experts, of its own classes."""

    def __init__(self) -> None:
        super().__init__()
        linear = import_module("vllm.model_executor.layers.linear")
        activation = import_module("vllm.model_executor.layers.activation")
        name = "model.layers.0.mlp.shared_experts."
        self.gate_up_proj = linear.MergedColumnParallelLinear(
            HIDDEN, [INNER, INNER], bias=False, prefix=name + "gate_up_proj"
        )
        self.act_fn = activation.SiluAndMul()
        self.down_proj = linear.RowParallelLinear(
            INNER, HIDDEN, bias=False, prefix=name + "down_proj"
        )

    def forward(self, x: torch.Tensor) -> Any:
        gate_up, _ = self.gate_up_proj(x)
        down, _ = self.down_proj(self.act_fn.forward_native(gate_up))
        return down


@each_row("inside", [False, True])  # whether vLLM's own kernel of the experts would run them
def test_both_matrices_run_once_each(inside: bool) -> None:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Module()])
    mlp = model.layers[0].mlp = torch.nn.Module()
    mlp.shared_experts = Mlp()
    runner = mlp.experts = vllm_layers.experts("bf16", shared_experts=mlp.shared_experts)
    points = {point.name.rpartition(".")[2]: point for point in find_points(model)}
    assert [points[name].slot for name in ("gate_up_proj", "down_proj")] == ["mlp", "mlp"]

    swapped = {}
    for name, rows in (("gate_up_proj", 2 * INNER), ("down_proj", HIDDEN)):
        value = 1.0 if name == "gate_up_proj" else 5.0
        run = lambda x, _, rows=rows, value=value: x.new_full((len(x), rows), value)  # noqa: E731
        swapped[name] = GuardedReplacement(name, name, replacing(run))
        swap_linear(points[name], {"b": swapped[name]}, compiled=False)
    experts = GuardedReplacement("experts", "moe", replacing(lambda x, _: torch.full_like(x, 7.0)))
    swap_experts(points["experts"], {"b": experts})
    SIDES.switch("b")

    shared = runner._shared_experts
    x, logits = torch.randn(3, HIDDEN).bfloat16(), torch.randn(3, 4).bfloat16()
    kind = type(runner.routed_experts.quant_method)
    with (
        patch.object(kind, "is_monolithic", False),
        patch.object(kind, "topk_indices_dtype", torch.int32, create=True),
        patch.object(shared, "_mk_can_overlap_shared_experts", lambda: inside),
    ):
        beside, routed = runner._apply_quant_method(x, logits, x)
    assert [guarded.calls for guarded in swapped.values()] == [{"b": 1}, {"b": 1}]
    assert (beside.unique().tolist(), routed.unique().tolist()) == ([5.0], [7.0])


def test_a_matrix_whose_input_vllm_quantizes_with_the_activation_is_left_alone() -> None:
    """As vLLM 0.33 does for FP8 and NVFP4 `down_proj`s: compiling the model failed."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Module()])
    mlp = model.layers[0].mlp = Mlp()
    mlp.down_proj._input_quant_key = object()
    mlp.gate_up_proj._input_quant_key = object()
    built = build_all(model, {"a": (Swap("mlp", "spark_prof!"),)})
    why = {one.point.name.rpartition(".")[2]: one.choices["a"].why for one in built}
    assert "quantizes its input" in str(why["down_proj"])
    assert "quantizes its input" not in str(why["gate_up_proj"])


@pytest.mark.parametrize("past", [True, False])
def test_a_router_that_goes_past_its_method_is_left_to_vllm(past: bool) -> None:
    """As `GateLinear` on a GPU where logits are float32: the kernel would never be called."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Module()])
    mlp = model.layers[0].mlp = torch.nn.Module()
    gate = mlp.gate = Linear(4, HIDDEN)
    gate.allow_cublas_router_gemm = past
    (built,) = build_all(model, {"a": (Swap("router", "spark_prof!"),)})
    assert built.point.module is gate
    assert ("kernel of its own for routers" in built.choices["a"].why) == past
