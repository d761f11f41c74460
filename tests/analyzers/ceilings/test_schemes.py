"""Quantization configurations of every kind say which module is in which format."""

import pytest

from spark_prof.analyzers.ceilings.schemes import schemes_of
from tests.rows import each_row

UP = "model.layers.3.mlp.up_proj"
Q = "model.layers.3.self_attn.q_proj"
EXPERT = "model.layers.3.mlp.experts.*.up_proj"
HEAD = "lm_head"


def group(bits: int, kind: str, size: int | None = None, **more: object) -> dict[str, object]:
    weights = {"num_bits": bits, "type": kind, "group_size": size}
    return {"targets": ["Linear"], "weights": weights} | more


def compressed(*groups: dict[str, object], **more: object) -> dict[str, object]:
    numbered = {f"group_{i}": g for i, g in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": numbered} | more


CONFIGS = {
    "nothing": ({}, {UP: None}),
    "mxfp4": ({"quant_method": "mxfp4"}, {UP: None, Q: None, EXPERT: "mxfp4"}),
    "fp8": (
        {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", Q]},
        {UP: "fp8", Q: None, HEAD: None},
    ),
    "modelopt": (
        {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*"]},
        {UP: "nvfp4", Q: None, HEAD: None},
    ),
    "modelopt with a prefix": (
        {"quant_algo": "FP8", "exclude_modules": ["language_model.model.layers.3.self_attn*"]},
        {UP: "fp8", Q: None},
    ),
    "modelopt mixed": (
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                Q: {"quant_algo": "FP8"},
                "model.layers.3.mlp.experts": {"quant_algo": "NVFP4"},
            },
        },
        {Q: "fp8", EXPERT: "nvfp4", UP: None},
    ),
    "modelopt mixed, expert by expert": (
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.layers.3.mlp.experts.{expert}.up_proj": {"quant_algo": "NVFP4"}
                for expert in range(4000)
            },
        },
        {EXPERT: "nvfp4", UP: None},
    ),
    "compressed nvfp4": (
        compressed(group(4, "float", 16), ignore=["re:.*lm_head", r"re:.*self_attn\.q_proj$"]),
        {UP: "nvfp4", Q: None, HEAD: None},
    ),
    "compressed mxfp4": (compressed(group(4, "float", 32)), {UP: "mxfp4"}),
    "compressed fp8": (compressed(group(8, "float")), {UP: "fp8"}),
    "compressed int4": (compressed(group(4, "int", 128)), {UP: "int4"}),
    "compressed int8": (compressed(group(8, "int")), {UP: "int8"}),
    "compressed, two groups": (
        compressed(
            group(8, "float") | {"targets": [r"re:.*self_attn\.(q)_proj$", "re:.*q_proj$"]},
            group(4, "float", 16),
        ),
        {Q: "fp8", UP: "nvfp4"},
    ),
    "by the layer's number": (
        compressed(group(8, "float"), ignore=[r"re:.*layers\.\d+\.mlp.*"]),
        {UP: None, Q: "fp8"},
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn"]},
        {UP: "int4", Q: None},
    ),
    "gptq of 8 bits": ({"quant_method": "gptq", "bits": 8}, {UP: "int8"}),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {UP: "nf4"}),
}


@each_row(("config", "formats"), CONFIGS.values())
def test_formats_of_modules(config: dict[str, object], formats: dict[str, str | None]) -> None:
    schemes = schemes_of(config)
    assert {path: schemes.format_of(path) for path in formats} == formats


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "quark"},
        {"quant_algo": "W3A3"},
        {"quant_algo": "NVFP4", "exclude_modules": ["re:(a+)+$"]},
    ],
)
def test_what_is_not_understood_is_told(config: dict[str, object]) -> None:
    assert schemes_of(config).lost


@each_row(
    ("config", "found"),
    [
        ({"quantized_layers": {"a": None, "b": {"quant_algo": ["x"]}}}, None),
        ({"ignore": [None, 3, "", "x" * 10_000, ["y"]], "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": ["fp8"], "bits": "four", "exclude_modules": "lm_head"}, None),
        ({"quant_algo": None, "kv_cache_scheme": 3}, None),
    ],
)
def test_of_other_types_only_what_is_understood_counts(
    config: dict[str, object], found: str | None
) -> None:
    assert schemes_of(config).format_of(UP) == found


def test_of_groups_of_other_types_the_one_that_is_understood_counts() -> None:
    groups = {"a": None, "b": {"weights": 4}, "c": {"targets": 3, "weights": {"num_bits": 8}}}
    assert schemes_of({"config_groups": groups}).format_of(UP) == "int8"


def test_hostile_patterns_come_to_an_end() -> None:
    patterns = ["re:" + ".*a" * 90 + "$", "*" * 290 + "c", "*a" * 140, "re:" + "(a|a)*" * 40]
    schemes = schemes_of({"quant_algo": "FP8", "exclude_modules": patterns})
    for layer in range(200):
        assert schemes.format_of(f"model.layers.{layer}." + "b" * 60) == "fp8"
