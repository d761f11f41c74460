"""What checkpoints of every format ask for, module by module."""

from __future__ import annotations

from typing import Any

import pytest

from spark_prof.analyzers.fallbacks.checkpoint_schemes import CheckpointSchemes, label
from tests.rows import each_row

QKV = "model.layers.3.self_attn.qkv_proj"
EXPERTS = "model.layers.3.mlp.experts.routed_experts"


def group(weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    return {"config_groups": {"group_0": {
        "weights": weights, "input_activations": inputs, "targets": ["Linear"],
    }}, "quant_method": "compressed-tensors", "ignore": ["lm_head"]}  # fmt: skip


FP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
INT4 = {"num_bits": 4, "type": "int", "group_size": 128}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


@each_row(
    ("config", "scheme"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "W4A4 nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "W4A16 nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "W8A8 fp8"),
        (group(FP4, FP4), "W4A4 nvfp4"),
        (group(FP4, None), "W4A16 nvfp4"),
        (group(FP4, FP8), "W4A8 nvfp4"),
        (group(INT4, None), "W4A16 int4"),
        (group(FP8, FP8), "W8A8 fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "W8A8 fp8"),
        ({"quant_method": "awq", "bits": 4}, "W4A16 int4"),
        ({"quant_method": "gptq", "bits": 4}, "W4A16 int4"),
        ({}, "16-bit"),
    ],
)
def test_linear_layers(config: dict[str, Any], scheme: str) -> None:
    assert label(*CheckpointSchemes({"quantization_config": config}).of(QKV)) == scheme


def test_what_is_ignored_stays_as_it_is_under_either_name() -> None:
    for ignored in ("model.layers.3.self_attn.q_proj", "model.layers.3.self_attn*", "*self_attn*"):
        names = [ignored, ignored.replace("q_proj", "k_proj"), ignored.replace("q_proj", "v_proj")]
        config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": names}
        schemes = CheckpointSchemes({"quantization_config": config})
        assert label(*schemes.of(QKV)) == "16-bit", ignored
        assert label(*schemes.of(EXPERTS)) == "W4A4 nvfp4", ignored


@pytest.mark.parametrize("method", ["mxfp4", "gpt_oss_mxfp4"])
def test_gpt_oss_quantizes_its_experts_only(method: str) -> None:
    schemes = CheckpointSchemes({"quantization_config": {
        "quant_method": method, "modules_to_not_convert": ["lm_head", "model.embed_tokens"],
    }})  # fmt: skip
    assert schemes.of("model.layers.0.attn.qkv_proj") == ("16-bit", "16-bit")
    assert schemes.of("model.layers.0.mlp.experts.routed_experts") == ("mxfp4", "")
    assert label("mxfp4", "") == "W4A? mxfp4"


def test_mixed_precision_by_module() -> None:
    layers = {
        **{f"model.layers.3.self_attn.{name}_proj": {"quant_algo": "FP8"} for name in "qkv"},
        "model.layers.3.mlp.experts.0.gate_proj": {"quant_algo": "W4A16_NVFP4"},
    }
    config = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
    }
    schemes = CheckpointSchemes({"quantization_config": config})
    assert label(*schemes.of(QKV)) == "W8A8 fp8"
    assert label(*schemes.of(EXPERTS)) == "W4A16 nvfp4"


@each_row(
    "config",
    [
        None, 7, "nvfp4", [], {"quant_method": None}, {"quant_method": ["x"]},
        {"config_groups": {"a": None}}, {"config_groups": {"a": {"weights": 4}}},
        {"config_groups": []}, {"quantized_layers": {"a": 1}}, {"quant_algo": {}},
    ],
)  # fmt: skip
def test_a_configuration_that_names_no_format_is_one_without(config: object) -> None:
    found = CheckpointSchemes({"quantization_config": config}).of(QKV)
    assert found == CheckpointSchemes({"hidden_size": 8}).of(QKV)


def test_what_is_no_pattern_ignores_nothing() -> None:
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [1, None, "re:("]}
    assert CheckpointSchemes({"quantization_config": config}).of(QKV) == ("nvfp4", "nvfp4")


def test_without_a_model_nothing_is_told() -> None:
    assert CheckpointSchemes({}).of(QKV) == ("", "")


@pytest.mark.parametrize("method", ["fp8", "gptq", "awq"])
def test_lm_head_is_left_as_it_is_without_a_word(method: str) -> None:
    config: dict[str, Any] = {"quant_method": method, "bits": 4, "group_size": 128}
    assert CheckpointSchemes({"quantization_config": config}).of("lm_head") == ("16-bit", "16-bit")
    asked = CheckpointSchemes({"quantization_config": {**config, "lm_head": True}}).of("lm_head")
    assert asked[0] in ("fp8", "int4")
