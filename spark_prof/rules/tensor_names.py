"""What a tensor's name says: its module, which part of it the tensor is, and what it is for.

Rules first, then the rules for a live model's modules (`rules.components`). First match wins;
each row carries examples that are its test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from spark_prof.rules.components import component_of, layer_of


@dataclass(frozen=True)
class WeightUse:
    """What a module's weights are for."""

    component: str  # a word of the vocabulary; `other` where no rule says it
    role: str = "decoder"  # decoder, drafter or encoder


@dataclass(frozen=True)
class TensorRule:
    """Modules whose path the pattern is found in; the words' meaning is that of `Place`."""

    pattern: str
    place: WeightUse
    examples: tuple[str, ...]


RULES: tuple[TensorRule, ...] = (
    TensorRule(r"(?:^|\.)(?:visual|vit|vision\w*|image_\w+|img_\w+|audio_\w+|sound_\w+|speech_\w+|"
        r"multi_modal_projector|mm_projector|aligner|connector|patch_merger|embed_tokens_extend|"
        r"talker|token2wav|code2wav)(?:\.|$)|^mlp1\.",
        WeightUse("other", "encoder"), ("model.visual.blocks.0.attn.qkv",
        "vision_tower.encoder.layers.3.mlp.fc1", "mlp1.0",
        "talker.model.layers.0.self_attn.q_proj")),
    TensorRule(r"(?:^|\.)(?:mtp\w*|nextn\w*|draft\w*|eagle\w*|medusa\w*)(?:\.|$)",
        WeightUse("other", "drafter"), ("mtp.layers.0.mlp.experts.*.up_proj", "model.mtp.fc")),
    TensorRule(r"^output$", WeightUse("lm_head"), ("output",)),
    TensorRule(r"(?:^|\.)(?:embed_tokens_per_layer|embeddings|embed_positions)$",
        WeightUse("embedding"),
        ("backbone.embeddings", "model.language_model.embed_tokens_per_layer")),
    TensorRule(r"\.(?:experts|routed_experts)(?:\.|$)|\.block_sparse_moe\.(?:input|output)_linear$",
        WeightUse("experts"), ("backbone.layers.1.mixer.experts.*.up_proj",
        "model.layers.0.block_sparse_moe.experts.*.w1", "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.block_sparse_moe.input_linear")),
    TensorRule(r"\.shared_(?:experts?|mlp)(?:\.|$)|\.shared_expert_gate$",
        WeightUse("shared_experts"),
        ("backbone.layers.1.mixer.shared_experts.down_proj",
        "model.layers.2.shared_mlp.input_linear")),
    TensorRule(r"\.(?:gate|router)(?:\.|$)|\.moe_statics(?:\.|$)|\.e_score_correction$",
        WeightUse("router"),
        ("model.layers.3.mlp.gate.e_score_correction",
        "model.layers.0.block_sparse_moe.router.layer", "backbone.layers.1.mixer.gate",
        "model.layers.0.block_sparse_moe.e_score_correction")),
    TensorRule(r"\.mixer\.(?:q|k|v|qkv)_proj$|\.(?:attention|attn|self_attn)\.(?:w?qkv|w[qkv]|[qkv])$|"
        r"\.self_attn\.(?:wq_[ab]|wkv)$",
        WeightUse("qkv"), ("backbone.layers.5.mixer.q_proj", "model.layers.0.attention.wqkv",
        "layers.0.attention.wq")),
    TensorRule(r"\.mixer\.o_proj$|\.(?:attention|attn|self_attn)\.(?:wo|out|wo_[ab]|o_[ab]_proj)$",
        WeightUse("o_proj"), ("backbone.layers.5.mixer.o_proj", "model.layers.0.attention.wo")),
    TensorRule(r"\.mixer\.(?:up|down|gate)_proj$|\.mlps?\.\d+\.|\.fc[12]$", WeightUse("mlp"),
        ("backbone.layers.3.mixer.up_proj", "model.layers.0.mlps.1.up_proj",
        "model.decoder.layers.0.fc1")),
    TensorRule(r"\.(?:short_)?conv(?:\.|$)", WeightUse("ssm"),
        ("model.layers.0.conv.in_proj", "model.layers.0.short_conv.out_proj")),
)  # fmt: skip

_COMPILED = tuple((re.compile(rule.pattern), rule.place) for rule in RULES)

_EXPERT = re.compile(r"(?<=experts\.)\d{1,6}(?=\.)")
_PART = re.compile(
    r"(?P<module>.+?)(?:"
    r"\.(?P<part>weight(?:_packed|_scale(?:_inv|_2)?|_global_scale|_zero_point|_shape|_g_idx)?|"
    r"input_scale|input_global_scale|[kvq]_scale|qweight|qzeros|scales?|g_idx|bias|"
    r"weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+))"
    r"|_(?P<tail>blocks|scales?|scale_inv|weight_scale(?:_inv|_2)?|input_scale|bias))"
)


def split_name(name: str) -> tuple[str, str]:
    """A tensor's module, with `*` for the number of an expert, and which part of it it is.

    The part of a tensor that is the whole module, such as a stack of experts, is `weight`.
    """
    name = _EXPERT.sub("*", name)
    match = _PART.fullmatch(name)
    if match is None:
        return name, "weight"
    return match["module"], match["part"] or match["tail"]


@lru_cache(maxsize=1 << 16)
def place_of(module: str, layers: int) -> WeightUse:
    """What the weights of a module, as `split_name` gives it, are for.

    What lies beyond the decoder's layers drafts tokens; 0 where their number is unknown.
    """
    place = next((place for pattern, place in _COMPILED if pattern.search(module)), None)
    if place is None:
        place = WeightUse(component_of(module, "") or "other")
    if place.role == "decoder" and layers and layer_of(module) >= layers:
        return WeightUse(place.component, "drafter")
    return place
