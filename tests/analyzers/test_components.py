"""The rule table of modules against its own examples."""

from __future__ import annotations

import re

import pytest

from spark_prof.analyzers.components import RULES, ModuleRule, component_of, layer_of
from spark_prof.vocabulary import COMPONENTS

EXAMPLES = [(rule, *example) for rule in RULES for example in rule.examples]


def _first(path: str, type_name: str) -> ModuleRule | None:
    for rule in RULES:
        if re.search(rule.pattern, path) and re.search(rule.type_pattern, type_name):
            return rule
    return None


@pytest.mark.parametrize(("rule", "path", "type_name"), EXAMPLES, ids=lambda value: str(value)[:60])
def test_an_example_matches_its_own_row_first(rule: ModuleRule, path: str, type_name: str) -> None:
    assert _first(path, type_name) is rule
    assert component_of(path, type_name) == rule.component


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.component}-{rule.pattern[:20]}")
def test_every_row_has_an_example_and_a_word_of_the_vocabulary(rule: ModuleRule) -> None:
    assert rule.examples
    assert rule.component in (*COMPONENTS, "")


@pytest.mark.parametrize(
    ("path", "type_name", "component"),
    [
        ("", "Qwen3ForCausalLM", ""),
        ("model", "Qwen3Model", ""),
        ("model.layers.0", "Qwen3DecoderLayer", ""),
        ("model.layers.0.mlp.gate_up_proj", "MergedColumnParallelLinear", "mlp"),
        ("model.layers.0.mlp.gate_proj", "ColumnParallelLinear", "mlp"),
        ("transformer.h.3.attn.c_attn", "QKVParallelLinear", "qkv"),
        ("transformer.h.3.attn.c_proj", "RowParallelLinear", "o_proj"),
        ("transformer.h.3.mlp.c_proj", "RowParallelLinear", "mlp"),
        ("model.layers.1.linear_attn.out_proj", "RowParallelLinear", "ssm"),
        ("model.layers.1.linear_attn.norm", "RMSNormGated", "norm"),
        ("model.layers.1.block_sparse_moe.gate", "ReplicatedLinear", "router"),
        ("model.layers.1.block_sparse_moe.experts", "FusedMoE", "experts"),
        ("model.layers.1.mlp.experts.gate", "GateLinear", "router"),
        ("model.layers.1.mlp.shared_expert.act_fn", "SiluAndMul", "shared_experts"),
        ("model.layers.1.self_attn.kv_b_proj", "ColumnParallelLinear", "qkv"),
        ("model.layers.1.self_attn.k_norm", "RMSNorm", "norm"),
        ("model.layers.1.self_attn.attn", "Attention", "attention"),
        ("language_model.lm_head", "ParallelLMHead", "lm_head"),
    ],
)
def test_modules_of_real_models(path: str, type_name: str, component: str) -> None:
    assert component_of(path, type_name) == component


@pytest.mark.parametrize(
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
    ],
)
def test_the_layer_in_a_path(path: str, layer: int) -> None:
    assert layer_of(path) == layer
