"""Experts of vLLM's layers are read with the bits that vLLM's loaders put into them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spark_prof.kernels.candidate import Activation
from spark_prof.kernels.formats import Fp8Blocks
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.layers import ExpertsLayer
from spark_prof.swaps.live_weights import EXPERTS, read_layer, stored_as
from tests.rows import each_row

from . import vllm_layers
from .vllm_checkpoints import load_experts, load_gpt_oss, values
from .vllm_layers import HIDDEN, INNER

pytestmark = pytest.mark.usefixtures("vllm_world")

READ = (
    "bf16",
    "modelopt nvfp4",
    "modelopt nvfp4 w4a16",
    "compressed nvfp4",
    "compressed nvfp4 w4a4",
    "compressed mxfp4",
    "mxfp4",
    "fp8",
    "modelopt fp8",
    "compressed fp8",
    "compressed fp8 tensor",
)
OPENAI = {"activation": "swigluoai", "has_bias": True}
NO_GATE = {"activation": "relu2_no_mul", "ckpt_names": ("up_proj", "down_proj", None)}


def read(runner: Any) -> ExpertsLayer:
    layer = read_layer("experts", runner, "moe")
    assert isinstance(layer, ExpertsLayer)
    return layer


@each_row("quantization", READ)
def test_experts_keep_their_values(quantization: str) -> None:
    runner = vllm_layers.experts(quantization)
    module = runner.routed_experts
    gate_up, down = load_experts(module, stored_as(module, EXPERTS), HIDDEN, INNER)
    layer = read(runner)
    torch.testing.assert_close(values(layer.gate_up), gate_up, rtol=1e-12, atol=0)
    torch.testing.assert_close(values(layer.down), down, rtol=1e-12, atol=0)
    assert layer.activation == Activation("silu")
    assert (layer.gate_up_bias, layer.down_bias) == (None, None)
    if quantization == "bf16":
        # In place, so that what reads it there copies nothing.
        assert layer.stays
        assert layer.gate_up.is_contiguous()
        assert layer.gate_up.data_ptr() == module.w13_weight.data_ptr()
    assert (layer.router.experts, layer.router.top_k) == (4, 2)


NO_GATES = ("bf16", "modelopt nvfp4", "modelopt fp8", *(q for q in READ if "compressed" in q))


@each_row("quantization", ["fp8 blocks", "compressed fp8 blocks"])
def test_experts_in_fp8_blocks(quantization: str) -> None:
    hidden, inner = 256, 128
    runner = vllm_layers.experts(quantization, hidden_size=hidden, intermediate_size=inner)
    module = runner.routed_experts
    gate_up, down = load_experts(module, stored_as(module, EXPERTS), hidden, inner)
    layer = read(runner)
    assert isinstance(layer.gate_up, Fp8Blocks)
    torch.testing.assert_close(values(layer.gate_up), gate_up, rtol=0, atol=0)
    torch.testing.assert_close(values(layer.down), down, rtol=0, atol=0)
    module.weight_block_size = [64, 128]
    with pytest.raises(KernelError, match="64 x 128 blocks; those of 128 x 128 are read"):
        read(runner)


@each_row("quantization", NO_GATES)
def test_experts_without_a_gate(quantization: str) -> None:
    runner = vllm_layers.experts(quantization, **NO_GATE)
    module = runner.routed_experts
    up, down = load_experts(module, stored_as(module, EXPERTS), HIDDEN, INNER)
    layer = read(runner)
    assert layer.activation == Activation("relu2")
    assert values(layer.gate_up).shape == (4, INNER, HIDDEN)
    torch.testing.assert_close(values(layer.gate_up), up, rtol=1e-12, atol=0)
    torch.testing.assert_close(values(layer.down), down, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("hidden", "inner"), [(64, 96), (256, 128), (320, 416)])
def test_gpt_oss_without_padding_and_turns(hidden: int, inner: int) -> None:
    runner = vllm_layers.experts("gpt-oss", hidden_size=hidden, intermediate_size=inner, **OPENAI)
    exact = load_gpt_oss(runner.routed_experts, hidden, inner)
    layer = read(runner)
    for name in ("gate_up", "down"):
        torch.testing.assert_close(values(getattr(layer, name)), exact[name], rtol=0, atol=0)
    for name in ("gate_up_bias", "down_bias"):
        assert torch.equal(getattr(layer, name), exact[name])
        assert getattr(layer, name).is_contiguous()
    assert layer.activation == Activation("swiglu", 1.702, 7.0)


def test_gpt_oss_computes_what_vllm_computes_from_the_padded_parameters() -> None:
    from vllm.model_executor.layers.activation import SwigluOAIAndMul

    runner = vllm_layers.experts("gpt-oss", **OPENAI)
    module = runner.routed_experts
    load_gpt_oss(module, HIDDEN, INNER)
    layer = read(runner)
    x = torch.randn(3, HIDDEN, dtype=torch.float64)
    padded = torch.nn.functional.pad(x, (0, module.hidden_size - HIDDEN))
    for expert in range(4):
        both, down = (
            values(type(layer.gate_up)(weight.data, scale.data))[expert]
            for weight, scale in (
                (module.w13_weight, module.w13_weight_scale),
                (module.w2_weight, module.w2_weight_scale),
            )
        )
        between = padded @ both.T + module.w13_bias[expert].double()
        between = SwigluOAIAndMul().forward_native(between)
        theirs = (between @ down.T + module.w2_bias[expert].double())[:, :HIDDEN]
        torch.testing.assert_close(one_expert(layer, expert, x), theirs)


def one_expert(layer: ExpertsLayer, expert: int, x: torch.Tensor) -> torch.Tensor:
    """What `kernels.experts` documents, in float64."""
    assert layer.gate_up_bias is not None
    assert layer.down_bias is not None
    both = x @ values(layer.gate_up)[expert].T + layer.gate_up_bias[expert].double()
    gate, up = both.chunk(2, -1)
    limit, alpha = layer.activation.limit, layer.activation.alpha
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    between = gate * torch.sigmoid(alpha * gate) * (up + 1)
    return between @ values(layer.down)[expert].T + layer.down_bias[expert].double()


def test_swiglu_with_gate_before_up() -> None:
    given = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "swiglu_beta": 1.0}
    runner = vllm_layers.experts("compressed nvfp4", activation="swigluoai_uninterleave", **given)
    module = runner.routed_experts
    gate_up, _ = load_experts(module, stored_as(module, EXPERTS), HIDDEN, INNER)
    layer = read(runner)
    assert layer.activation == Activation("swiglu", 1.702, 7.0)
    torch.testing.assert_close(values(layer.gate_up), gate_up, rtol=1e-12, atol=0)


def test_global_scales_of_rows_that_take_turns_must_be_the_same() -> None:
    runner = vllm_layers.experts("compressed nvfp4", activation="swigluoai")
    module = runner.routed_experts
    load_experts(module, stored_as(module, EXPERTS), HIDDEN, INNER)
    with pytest.raises(KernelError, match="take turns"):
        read(runner)
    module.w13_weight_global_scale.data.fill_(2.0)
    assert values(read(runner).gate_up).shape == (4, 2 * INNER, HIDDEN)


@each_row(
    ("built", "reason"),
    [
        ({"activation": "gelu"}, "activation is gelu"),
        ({"swiglu_limit": 7.0}, "activation is silu with limit"),
        ({"apply_router_weight_on_input": True}, "weighs what goes into"),
        ({"custom_routing_function": max}, "function of the model's own"),
    ],
)
def test_what_the_kernels_do_not_do_is_refused(built: dict[str, Any], reason: str) -> None:
    runner = vllm_layers.experts("bf16", **built)
    with pytest.raises(KernelError, match=reason):
        read(runner)


@each_row(
    ("where", "field", "reason"),
    [
        ("moe_config.moe_parallel_config", "use_ep", "expert parallel"),
        ("moe_config.moe_parallel_config", "enable_eplb", "EPLB"),
        ("moe_config.moe_parallel_config", "sp_size", "sequence parallel"),
        ("moe_config.moe_parallel_config", "dp_size", "data parallel"),
        ("moe_config.moe_parallel_config", "pcp_size", "data parallel"),
        ("moe_config", "is_lora_enabled", "LoRA"),
        ("", "_expert_map", "numbered anew"),
    ],
)
def test_what_other_engines_do_is_refused(where: str, field: str, reason: str) -> None:
    runner = vllm_layers.experts("bf16")
    owner = runner.routed_experts
    for part in filter(None, where.split(".")):
        owner = getattr(owner, part)
    setattr(owner, field, torch.zeros(4) if field == "_expert_map" else 2)
    with pytest.raises(KernelError, match=reason):
        read(runner)


def test_experts_that_vllm_lays_out_anew_do_not_stay() -> None:
    runner = vllm_layers.experts("bf16")
    method = runner.routed_experts.quant_method
    method.unquantized_backend = type(method.unquantized_backend).FLASHINFER_CUTLASS
    assert not read(runner).stays
