"""The rule tables of modules against their own examples and the modules of vLLM's models."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from spark_prof.rules.components import (
    CLASS_RULES,
    MODULE_RULES,
    PARTS,
    SHORTER_ROLES,
    ComponentRule,
    component_of,
    component_of_class,
    is_layer_class,
    is_outer_part,
    layer_of,
    outer_part,
    part_of,
    role_of,
)
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

PATHS = Path(__file__).parents[1] / "data" / "module-paths.csv"

EXAMPLES = [(rule, *example) for rule in MODULE_RULES for example in rule.examples]


def _first(path: str, type_name: str) -> ComponentRule | None:
    for rule in MODULE_RULES:
        if re.search(rule.pattern, path) and re.search(rule.beside, type_name):
            return rule
    return None


@each_row(("rule", "path", "type_name"), EXAMPLES)
def test_an_example_matches_its_own_row_first(
    rule: ComponentRule, path: str, type_name: str
) -> None:
    assert _first(path, type_name) is rule
    assert component_of(path, type_name) == rule.component in (*COMPONENTS, "")


@each_row(
    ("path", "layer"),
    [
        ("model.layers.0.self_attn", 0),
        ("model.layers.17", 17),
        ("layers.3.mlp", 3),
        ("transformer.h.4.attn", 4),
        ("transformer.blocks.5", 5),
        ("model.layers", -1),
        ("model.sublayers.3", -1),
        ("model.layers.x.3", -1),
        ("model.layers.3a", -1),
        ("model.layers.1234567", -1),
        ("lm_head", -1),
        ("", -1),
        ("drafter.model.layers.61.mtp_block.self_attn.o_proj", -1),
        ("visual.blocks.3.attn.qkv", -1),
        ("vision_tower.vision_model.encoder.layers.3.mlp", -1),
        ("model.encoder.layers.2.self_attn", -1),
        ("model.decoder.layers.2.self_attn", 2),
    ],
)
def test_the_layer_in_a_path(path: str, layer: int) -> None:
    assert layer_of(path) == layer


def test_modules_of_many_architectures() -> None:
    """The modules of vLLM 0.32's models: each kind of layer once, its parts as vLLM made them."""
    with PATHS.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    found = [row | {"component": component_of(row["path"], row["type"]),
                    "role": role_of(row["path"])} for row in rows]  # fmt: skip
    assert [row for row in zip(found, rows, strict=True) if row[0] != row[1]] == []
    assert len({row["architecture"] for row in rows}) >= 30


@each_row(("pattern", "shorter", "example"), SHORTER_ROLES)
def test_a_role_leaves_out_what_says_nothing(
    pattern: str, shorter: str, example: tuple[str, str]
) -> None:
    path, role = example
    assert re.search(pattern, path)
    assert role_of(path) == role


@each_row(("pattern", "part", "example"), PARTS)
def test_a_part_of_a_module_is_known_by_its_tensor(
    pattern: str, part: str, example: tuple[str, str]
) -> None:
    tensor, found = example
    assert re.search(pattern, tensor)
    assert role_of("model.layers.1.mlp", tensor) == f"mlp.{found}"
    # Of a tensor of no module nothing is known.
    assert role_of("", tensor) == ""


@each_row(
    ("path", "tensor", "role"),
    [
        ("model.layers.0.mlp.experts.routed_experts", "w2_bias", "mlp.experts.w2"),
        ("model.layers.0.mlp.experts.routed_experts",
         "quant_method.w13_precision_config.weight_scale.storage.data", "mlp.experts.w13"),
        ("drafter.model.layers.1.self_attn.mla_attn.mla_attn", "W_UV",
         "drafter.self_attn.mla_attn.absorb_v"),
        ("backbone.layers.0.mixer", "dt_bias", "mixer.scan"),
        ("backbone.layers.0.mixer.conv1d", "weight", "mixer.conv1d"),
        ("backbone.layers.0.mixer", "conv_weights", "mixer.conv1d"),
        # A scale is read with its weight, but is not one of the two absorbed products.
        ("model.layers.0.self_attn.mla_attn", "W_K_scale", "self_attn.mla_attn"),
        ("model.layers.0.self_attn.qkv_proj", "weight", "self_attn.qkv_proj"),
        ("model.layers.0.self_attn.attn", "_k_scale", "self_attn.attn"),
        ("model.layers.0.feed_forward.w2", "weight", "feed_forward.w2"),
    ],
)  # fmt: skip
def test_the_role_of_what_reads_a_tensor(path: str, tensor: str, role: str) -> None:
    assert role_of(path, tensor) == role


@each_row(
    ("component", "name", "around"),
    [
        *((rule.component, *example) for rule in CLASS_RULES for example in rule.examples),
        ("attention", "Qwen3MoeAttention", "Qwen3MoeDecoderLayer"),
        ("mlp", "Qwen3MoeMLP", "Qwen3MoeDecoderLayer"),
        ("norm", "Qwen3MoeRMSNorm", "Qwen3MoeDecoderLayer"),
        *(("", name, "") for name in ("Dropout", "SiLU", "ModuleList", "QuantFP8")),
        *(("", f"Qwen3Moe{name}", "") for name in ("ForCausalLM", "Model", "DecoderLayer")),
    ],
)
def test_the_component_of_a_class(component: str, name: str, around: str) -> None:
    assert component_of_class(name, around) == component in (*COMPONENTS, "")


def test_layer_classes() -> None:
    names = ("TransformerBlock", "LlamaDecoderLayer", "Linear", "MLPBlock")
    assert [is_layer_class(name) for name in names] == [True, True, False, False]


@each_row(
    ("role", "part"),
    [
        ("drafter.self_attn.kv_b_proj", "drafter"),
        ("encoder.mlp.fc1", "encoder"),
        ("visual.attn.qkv", "visual"),
        ("encoder", "encoder"),
        ("self_attn.qkv_proj", ""),
        ("encoder_attn.kv_proj", ""),
        ("norm", ""),
        ("", ""),
    ],
)
def test_a_role_names_the_part_that_is_not_the_decoder(role: str, part: str) -> None:
    assert part_of(role) == part


@each_row(
    ("path", "inside", "whole"),
    [
        ("model.encoder", "", True),
        ("visual", "", True),
        ("model.encoder.layers.3", "encoder", False),
        ("vision_tower.vision_model.encoder.layers.3", "vision_tower", False),
        ("model.decoder.layers.0.encoder_attn", "", False),
        ("model.decoder", "", False),
        ("", "", False),
    ],
)
def test_the_part_that_a_module_lies_in(path: str, inside: str, whole: bool) -> None:
    assert outer_part(path) == inside
    assert is_outer_part(path) == whole
