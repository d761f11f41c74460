"""Weights of a live model's layers, and of a configuration where nobody looked into one."""

from __future__ import annotations

import pandas as pd
import pytest

from spark_prof.analyzers.roofline.shape import Shape
from spark_prof.analyzers.roofline.weights import Weights, derived_weights, weights_of
from spark_prof.traces.tables import TABLES

PLAIN = Shape()


def layers(*rows: dict[str, object]) -> pd.DataFrame:
    usual = {"type": "Linear", "layer": 0, "quant_method": "", "kernel": "", "shape": "",
             "weight_dtype": "bfloat16", "bytes": 0, "parameters": ""}  # fmt: skip
    frame = pd.DataFrame([usual | row for row in rows], columns=TABLES["layers"].schema.names)
    return frame.astype({"bytes": "int64", "layer": "int32"})


def one(found: list[Weights]) -> Weights:
    (weights,) = found
    return weights


@pytest.mark.parametrize(
    ("method", "dtype", "parameters", "elements"),
    [
        # As captured on an H100: rows of the captures in tests/data.
        ("UnquantizedLinearMethod", "bfloat16", "weight:bfloat16:5120x2880 bias:bfloat16:5120",
         5120 * 2880),
        ("ModelOptNvFp4LinearMethod MarlinNvFp4LinearKernel", "int32",
         "weight:int32:128x10240 weight_scale:float8_e4m3fn:128x5120 alpha:float32:", 5120 * 2048),
        ("Fp8LinearMethod MarlinFP8ScaledMMLinearKernel", "int32", "weight:int32:128x10240",
         5120 * 1024),
        ("Fp8LinearMethod", "float8_e4m3fn",
         "weight:float8_e4m3fn:4096x4096 weight_scale_inv:float32:32x32", 4096 * 4096),
        ("GPTQMarlinLinearMethod", "int32",
         "qweight:int32:256x8192 scales:float16:32x4096 g_idx:int32:4096 qzeros:int32:1x2",
         256 * 8192 * 8),
        ("ModelOptNvFp4LinearMethod", "uint8", "weight:uint8:4096x2048", 4096 * 4096),
        ("X", "float4_e2m1fn_x2", "weight:float4_e2m1fn_x2:4096x2048", 4096 * 4096),
    ],
)  # fmt: skip
def test_elements_of_a_product(method: str, dtype: str, parameters: str, elements: int) -> None:
    row = {"path": "model.layers.0.self_attn.qkv_proj", "component": "qkv", "bytes": 5898256,
           "quant_method": method, "weight_dtype": dtype, "parameters": parameters}  # fmt: skip
    found = one(weights_of(layers(row), PLAIN))
    assert found.elements == elements
    assert found.bytes == 5898256
    assert found.quantized is (dtype != "bfloat16")


def test_both_products_of_the_experts_are_told_apart() -> None:
    row = {
        "path": "model.layers.0.mlp.experts.routed_experts", "component": "experts",
        "quant_method": "GptOssMxfp4MoEMethod", "weight_dtype": "uint8", "bytes": 425615360,
        "parameters": "w13_bias:float32:32x5760 w2_bias:float32:32x2880 "
        "w13_weight.storage.data:uint8:32x5760x1440 w2_weight.storage.data:uint8:32x5760x720 "
        "quant_method.w13_precision_config.weight_scale.storage.data:uint8:32x2944x184 "
        "quant_method.w2_precision_config.weight_scale.storage.data:uint8:32x2944x96",
    }  # fmt: skip
    first, second = weights_of(layers(row), PLAIN)
    assert (first.what, second.what) == ("w13", "w2")
    assert first.bytes + second.bytes == 425615360
    assert first.elements == 32 * 5760 * 2880
    assert second.elements == 32 * 2880 * 2880
    assert first.among_experts
    assert (first.order, second.order) == (0, 1)


def test_parts_that_a_decode_step_does_not_run_are_left_out() -> None:
    rows = [
        {"path": path, "component": component, "bytes": 100, "parameters": "weight:bfloat16:5x10"}
        for path, component in (
            ("visual.blocks.0.attn.qkv", "qkv"),
            ("mtp.layers.0.self_attn.qkv_proj", "qkv"),
            ("model.embed_tokens", "embedding"),
            ("model.layers.0.nothing", ""),
            ("model.layers.0.self_attn.o_proj", "o_proj"),
        )
    ]
    assert one(weights_of(layers(*rows), PLAIN)).component == "o_proj"


def test_a_tied_head_is_the_embedding() -> None:
    row = {"path": "model.embed_tokens", "component": "embedding", "bytes": 2000, "layer": -1,
           "parameters": "weight:bfloat16:100x10"}  # fmt: skip
    head = one(weights_of(layers(row), Shape(tied=True)))
    assert (head.component, head.layer, head.bytes, head.elements) == ("lm_head", -1, 2000, 1000)
    assert weights_of(layers(row), PLAIN) == []
    own = row | {"path": "lm_head", "component": "lm_head"}
    assert one(weights_of(layers(row, own), Shape(tied=True))).what == "lm_head"


def test_norms_convolutions_and_sinks_are_no_products() -> None:
    rows = [
        {"path": path, "component": component, "bytes": 128, "parameters": parameters}
        for path, component, parameters in (
            ("model.layers.0.input_layernorm", "norm", "weight:bfloat16:64"),
            ("model.layers.0.linear_attn.conv1d", "ssm", "weight:bfloat16:64x1x4"),
            ("model.layers.0.linear_attn", "ssm", "A_log:float32:32 dt_bias:float32:32"),
            ("model.layers.0.attn", "attention", "sinks:bfloat16:64"),
        )
    ]
    assert [found.is_product for found in weights_of(layers(*rows), PLAIN)] == [False] * 4


def test_the_gate_of_the_shared_expert_comes_after_it() -> None:
    names = ("shared_expert_gate", "shared_expert.gate_up_proj", "shared_expert.down_proj")
    rows = [
        {"path": f"model.layers.0.mlp.{name}", "component": "shared_experts", "bytes": 100,
         "parameters": "weight:bfloat16:5x10"}
        for name in names
    ]  # fmt: skip
    found = sorted(weights_of(layers(*rows), PLAIN), key=lambda weights: weights.order)
    inside = ["gate_up_proj", "down_proj"]
    assert [weights.what for weights in found] == [*inside, "shared_expert_gate"]


@pytest.mark.parametrize(
    "parameters", ["", ":", "weight", "weight:bfloat16:ax3", "weight:bfloat16:-5x-10", "::::"]
)
def test_parameters_that_say_nothing_leave_the_bytes(parameters: str) -> None:
    row = {"path": "model.layers.0.self_attn.o_proj", "component": "o_proj", "bytes": 100,
           "parameters": parameters}  # fmt: skip
    assert one(weights_of(layers(row), PLAIN)).bytes == 100


def test_a_configuration_alone_gives_the_same_bytes() -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "vocab_size": 151936, "dtype": "bfloat16",
    }  # fmt: skip
    found = derived_weights(config, 1)
    sums: dict[str, int] = {}
    for weights in found:
        sums[weights.component] = sums.get(weights.component, 0) + weights.bytes
    assert sums["qkv"] == 2 * 2 * 5120 * 2048
    assert sums["o_proj"] == 2 * 2 * 4096 * 2048
    assert sums["experts"] == 2 * 2 * 128 * 3 * 768 * 2048
    assert sums["lm_head"] == 2 * 151936 * 2048
    # vLLM runs q, k and v as one product, and the experts as two.
    places = [(weights.component, weights.layer) for weights in found]
    assert places.count(("qkv", 0)) == 1
    assert places.count(("experts", 0)) == 2
    halves = derived_weights(config, 2)
    qkv = [weights.bytes for weights in halves if weights.component == "qkv"]
    assert sum(qkv) == sums["qkv"] // 2
    assert derived_weights({}, 1) == []


@pytest.mark.parametrize("shape", ["9" * 5000, "x".join(["99999999"] * 50), "1e9", "0x0", "²x3"])
def test_no_shape_breaks_the_sums(shape: str) -> None:
    row = {"path": "model.layers.0.self_attn.o_proj", "component": "o_proj", "bytes": 100,
           "parameters": f"weight:bfloat16:{shape}"}  # fmt: skip
    assert one(weights_of(layers(row), PLAIN)).elements < 1 << 50


def test_sizes_that_no_module_has_are_left_out() -> None:
    rows = [{"path": "lm_head", "component": "lm_head", "bytes": size} for size in (-5, 0)]
    assert weights_of(layers(*rows), PLAIN) == []
