"""Which component a module of a vLLM model belongs to, by its path and class.

One rule table, first match wins; each row carries examples that are its tests. It runs inside
vLLM's workers too and needs only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["RULES", "ModuleRule", "component_of", "layer_of", "role_of"]


@dataclass(frozen=True)
class ModuleRule:
    """Modules whose path (and class, where given) match belong to the component.

    The pattern is searched in the path; `type_pattern` must match the class name too.
    An empty component marks a container whose children decide.
    """

    component: str
    pattern: str
    examples: tuple[tuple[str, str], ...]
    type_pattern: str = ""


RULES: tuple[ModuleRule, ...] = (
    ModuleRule(
        "lm_head",
        r"(^|\.)(lm_head|logits_processor|embed_out|output_layer)$",
        (("lm_head", "ParallelLMHead"), ("logits_processor", "LogitsProcessor")),
    ),
    ModuleRule("sampler", r"(^|\.)(sampler|rejection_sampler)$", (("sampler", "Sampler"),)),
    ModuleRule(
        "norm",
        r"(norm|layernorm|norm_f|ln_f|ln_\d)$",
        (
            ("model.layers.0.input_layernorm", "RMSNorm"),
            ("model.layers.3.self_attn.q_norm", "RMSNorm"),
            ("model.norm", "RMSNorm"),
        ),
    ),
    ModuleRule("norm", r"", (("model.layers.0.mixer.gate", "RMSNormGated"),), r"Norm"),
    ModuleRule(
        "rope",
        r"(rotary_emb|rotary_pos_emb|rope)$",
        (("model.layers.0.self_attn.rotary_emb", "RotaryEmbedding"),),
    ),
    ModuleRule("rope", r"", (("model.layers.0.attn.pos", "YaRNScalingRotaryEmbedding"),), "Rotary"),
    ModuleRule(
        "embedding",
        r"(^|\.)(embed_tokens|embed_in|wte|wpe|word_embeddings|tok_embeddings|embedding)$",
        (("model.embed_tokens", "VocabParallelEmbedding"), ("model.embedding", "Embedding")),
    ),
    ModuleRule(
        "ssm",
        r"\.(linear_attn|mamba|mixer|ssm|gdn|delta_net)(\.|$)",
        (
            ("model.layers.1.linear_attn.in_proj_qkvz", "ColumnParallelLinear"),
            ("backbone.layers.0.mixer", "MambaMixer2"),
        ),
        r"^(?!.*(MoE|Attention|QKV)).*$",
    ),
    ModuleRule(
        "shared_experts",
        r"\.shared_experts?(\.|$|_gate$)|\._shared_experts(\.|$)|\.shared_mlp(\.|$)",
        (
            ("model.layers.2.mlp.shared_experts.down_proj", "RowParallelLinear"),
            ("model.layers.2.mlp.shared_expert_gate", "ReplicatedLinear"),
        ),
    ),
    ModuleRule(
        "router",
        r"\.(gate|router|router_gate|gate_linear)$",
        (
            ("model.layers.0.mlp.gate", "GateLinear"),
            ("model.layers.0.mlp.router", "ReplicatedLinear"),
        ),
    ),
    ModuleRule(
        "router",
        r"\.select_experts$",
        (("model.layers.0.mlp.experts.router.select_experts", "FusedTopKRouter"),),
    ),
    ModuleRule(
        "experts",
        r"\.(experts|routed_experts|expert_mlp)(\.|$)",
        (
            ("model.layers.0.mlp.experts", "MoERunner"),
            ("model.layers.0.mlp.experts.routed_experts.forward_modular", "RoutedExperts"),
        ),
    ),
    ModuleRule(
        "experts",
        r"\.(mlp|moe|block_sparse_moe|feed_forward|ffn|mixer)$",
        (("model.layers.0.mlp", "Qwen3MoeSparseMoeBlock"), ("model.layers.0.mlp", "MLPBlock")),
        r"(?i:moe|mlpblock|sparse)",
    ),
    ModuleRule(
        "kv_write",
        r"\.do_kv_cache_update$",
        (("model.layers.0.self_attn.attn.impl.do_kv_cache_update", "FlashAttentionImpl"),),
    ),
    ModuleRule(
        "qkv",
        r"\.(qkv|qkv_proj|q_proj|k_proj|v_proj|Wqkv|query_key_value|c_attn|q_a_proj|q_b_proj|"
        r"kv_a_proj_with_mqa|kv_b_proj|fused_qkv_a_proj|kv_a_proj)$",
        (
            ("model.layers.0.self_attn.qkv_proj", "QKVParallelLinear"),
            ("model.layers.0.attn.qkv", "QKVParallelLinear"),
        ),
    ),
    ModuleRule(
        "o_proj",
        r"\.(self_attn|attn|attention|self_attention|mixer)\.(o_proj|out_proj|dense|c_proj|wo)$",
        (("model.layers.0.self_attn.o_proj", "RowParallelLinear"),),
    ),
    ModuleRule(
        "attention",
        r"\.(self_attn|attn|attention|self_attention|mla_attn|mixer)(\.|$)",
        (
            ("model.layers.0.self_attn", "Qwen3MoeAttention"),
            ("model.layers.0.self_attn.attn.impl.forward", "FlashAttentionImpl"),
            ("model.layers.0.attn.attn", "Attention"),
        ),
    ),
    ModuleRule(
        "mlp",
        r"\.(mlp|feed_forward|ffn)(\.|$)",
        (
            ("model.layers.0.mlp.gate_up_proj", "MergedColumnParallelLinear"),
            ("model.layers.0.mlp", "LlamaMLP"),
        ),
    ),
)

_COMPILED = tuple(
    (rule.component, re.compile(rule.pattern), re.compile(rule.type_pattern)) for rule in RULES
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|decoder_layers)\.(\d{1,5})(?:\.|$)")


@lru_cache(maxsize=65536)
def component_of(path: str, type_name: str) -> str:
    """The component of that module, or an empty string where the table has no row for it."""
    for component, pattern, type_pattern in _COMPILED:
        if pattern.search(path) and type_pattern.search(type_name):
            return component
    return ""


def layer_of(path: str) -> int:
    """The decoder layer in the path, -1 for none."""
    match = _LAYER.search(path)
    return int(match[1]) if match else -1


def role_of(path: str) -> str:
    """The path of a module without its layer, or without a leading "model." where it has none.

    Example:
        "model.layers.3.self_attn.qkv_proj" has the role "self_attn.qkv_proj".
    """
    match = _LAYER.search(path)
    return path[match.end() :] if match else path.removeprefix("model.")
