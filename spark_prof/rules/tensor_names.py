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
class Place:
    """What a module's weights are for."""

    component: str  # a word of the vocabulary; `other` where no rule says it
    role: str = "decoder"  # decoder, drafter or encoder


@dataclass(frozen=True)
class Rule:
    """Modules whose path the pattern is found in; the words' meaning is that of `Place`."""

    pattern: str
    place: Place
    examples: tuple[str, ...]


RULES: tuple[Rule, ...] = (
    Rule(r"(?:^|\.)(?:visual|vit|vision\w*|image_\w+|img_\w+|audio_\w+|sound_\w+|speech_\w+|"
        r"multi_modal_projector|mm_projector|aligner|connector|patch_merger|embed_tokens_extend|"
        r"talker|token2wav|code2wav)(?:\.|$)|^mlp1\.",
        Place("other", "encoder"), ("model.visual.blocks.0.attn.qkv",
        "vision_tower.encoder.layers.3.mlp.fc1", "mlp1.0",
        "talker.model.layers.0.self_attn.q_proj")),
    Rule(r"(?:^|\.)(?:mtp\w*|nextn\w*|draft\w*|eagle\w*|medusa\w*)(?:\.|$)",
        Place("other", "drafter"), ("mtp.layers.0.mlp.experts.*.up_proj", "model.mtp.fc")),
    Rule(r"^output$", Place("lm_head"), ("output",)),
    Rule(r"(?:^|\.)(?:embed_tokens_per_layer|embeddings|embed_positions)$", Place("embedding"),
        ("backbone.embeddings", "model.language_model.embed_tokens_per_layer")),
    Rule(r"\.(?:experts|routed_experts)(?:\.|$)|\.block_sparse_moe\.(?:input|output)_linear$",
        Place("experts"), ("backbone.layers.1.mixer.experts.*.up_proj",
        "model.layers.0.block_sparse_moe.experts.*.w1", "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.block_sparse_moe.input_linear")),
    Rule(r"\.shared_(?:experts?|mlp)(?:\.|$)|\.shared_expert_gate$", Place("shared_experts"),
        ("backbone.layers.1.mixer.shared_experts.down_proj",
        "model.layers.2.shared_mlp.input_linear")),
    Rule(r"\.(?:gate|router)(?:\.|$)|\.moe_statics(?:\.|$)|\.e_score_correction$", Place("router"),
        ("model.layers.3.mlp.gate.e_score_correction",
        "model.layers.0.block_sparse_moe.router.layer", "backbone.layers.1.mixer.gate",
        "model.layers.0.block_sparse_moe.e_score_correction")),
    Rule(r"\.mixer\.(?:q|k|v|qkv)_proj$|\.(?:attention|attn|self_attn)\.(?:w?qkv|w[qkv]|[qkv])$|"
        r"\.self_attn\.(?:wq_[ab]|wkv)$",
        Place("qkv"), ("backbone.layers.5.mixer.q_proj", "model.layers.0.attention.wqkv",
        "layers.0.attention.wq")),
    Rule(r"\.mixer\.o_proj$|\.(?:attention|attn|self_attn)\.(?:wo|out|wo_[ab]|o_[ab]_proj)$",
        Place("o_proj"), ("backbone.layers.5.mixer.o_proj", "model.layers.0.attention.wo")),
    Rule(r"\.mixer\.(?:up|down|gate)_proj$|\.mlps?\.\d+\.|\.fc[12]$", Place("mlp"),
        ("backbone.layers.3.mixer.up_proj", "model.layers.0.mlps.1.up_proj",
        "model.decoder.layers.0.fc1")),
    Rule(r"\.(?:short_)?conv(?:\.|$)", Place("ssm"),
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
def place_of(module: str, layers: int) -> Place:
    """What the weights of a module, as `split_name` gives it, are for.

    What lies beyond the decoder's layers drafts tokens; 0 where their number is unknown.
    """
    place = next((place for pattern, place in _COMPILED if pattern.search(module)), None)
    if place is None:
        place = Place(component_of(module, "") or "other")
    if place.role == "decoder" and layers and layer_of(module) >= layers:
        return Place(place.component, "drafter")
    return place
