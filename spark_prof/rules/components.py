"""Which component a module of a model belongs to: by its path and class, or by its class alone.

A recording knows paths, a trace of PyTorch's profiler only classes: two tables of one shape, first
match wins; each row carries examples that are its tests. It runs inside vLLM's workers too and
needs only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

LM_HEAD = "lm_head"
"""The role of the module that computes the logits, which a tied embedding's matrix has as well."""


DRAFTER = "drafter"
"""What the paths and roles of a drafter's modules begin with."""

DRAFTING = "drafter.propose"
"""The path of the call in which all drafts of a step are made."""


@dataclass(frozen=True)
class ComponentRule:
    """Modules that match belong to the component; empty for a container whose children decide."""

    component: str
    pattern: str  # searched in the path, or in the class
    examples: tuple[tuple[str, str], ...]  # pairs that match
    beside: str = ""  # searched in what the table knows beside it, the class or the class around it


MODULE_RULES: tuple[ComponentRule, ...] = (
    ComponentRule("lm_head",
        r"(^|\.)(lm_head|logits_processor|embed_out|output_layer|shared_head\.head)$|^proj_out$",
        (("lm_head", "ParallelLMHead"), ("logits_processor", "LogitsProcessor"),
        ("proj_out", "ParallelLMHead"),  # Whisper's
        ("drafter.model.layers.61.shared_head.head", "ParallelLMHead"))),
    ComponentRule("sampler", r"(^|\.)(sampler|rejection_sampler)$", (("sampler", "Sampler"),)),
    ComponentRule("norm", r"(norm|layernorm|norm_f|ln_f|ln_\d)$",
        (("model.layers.0.input_layernorm", "RMSNorm"),
        ("model.layers.3.self_attn.q_norm", "RMSNorm"), ("model.norm", "RMSNorm"))),
    ComponentRule("norm", r"", (("model.layers.0.mixer.gate", "RMSNormGated"),), r"Norm"),
    ComponentRule("rope", r"(rotary_emb|rotary_pos_emb|rope)(\.apply_rotary_emb)?$",
        (("model.layers.0.self_attn.rotary_emb", "RotaryEmbedding"),
        ("model.layers.0.self_attn.rotary_emb.apply_rotary_emb", "ApplyRotaryEmb"))),
    ComponentRule("rope", r"", (("model.layers.0.attn.pos", "YaRNScalingRotaryEmbedding"),),
        "Rotary"),
    ComponentRule("embedding",
        r"(^|\.)(embed_tokens|embed_tokens_per_layer|embed_in|embed_positions|wte|wpe|word_embeddings|"
        r"tok_embeddings|embeddings?)$",
        (("model.embed_tokens", "VocabParallelEmbedding"), ("model.embedding", "Embedding"),
        ("backbone.embeddings", "VocabParallelEmbedding"),
        ("model.embed_tokens_per_layer", "VocabParallelEmbedding"))),
    # What an encoder of sound begins with.
    ComponentRule("embedding", r"(^|\.)encoder\.conv\d$", (("model.encoder.conv1", "Conv1d"),)),
    ComponentRule("ssm", r"\.(linear_attn|mamba|ssm|gdn|delta_net|short_conv)(\.|$)",
        (("model.layers.1.linear_attn", "QwenGatedDeltaNetAttention"),
        ("model.layers.1.linear_attn.in_proj_qkvz", "ColumnParallelLinear"),
        ("model.layers.0.mamba.mamba.conv1d", "MergedColumnParallelLinear"))),
    ComponentRule("ssm", r"\.(mixer|self_attn|attn)$", (("backbone.layers.0.mixer", "MambaMixer2"),
        ("model.layers.0.self_attn", "KimiDeltaAttention"),
        ("model.layers.0.self_attn", "MiniMaxText01LinearAttention")),
        r"Mamba|Delta|Linear\w*Attention"),
    ComponentRule("ssm", r"\.mixer\.(in_proj\w*|conv1d|x_proj|dt_proj|out_proj)$",
        (("backbone.layers.0.mixer.in_proj", "MergedColumnParallelLinear"),
        ("backbone.layers.0.mixer.out_proj", "RowParallelLinear"))),
    ComponentRule("shared_experts",
        r"\.shared_experts?(\.|$|_gate$)|\._shared_experts(\.|$)|\.shared_mlp(\.|$)",
        (("model.layers.2.mlp.shared_experts.down_proj", "RowParallelLinear"),
        ("model.layers.2.mlp.shared_expert_gate", "ReplicatedLinear"),
        ("backbone.layers.1.mixer.shared_experts.up_proj", "ColumnParallelLinear"))),
    ComponentRule("router", r"\.(gate|router|router_gate|gate_linear)(\.wg)?$",
        (("model.layers.0.mlp.gate", "GateLinear"),
        ("model.layers.0.mlp.router", "ReplicatedLinear"),
        ("model.layers.0.mlp.gate.wg", "ReplicatedLinear"))),
    ComponentRule("router", r"\.select_experts$",
        (("model.layers.0.mlp.experts.router.select_experts", "FusedTopKRouter"),)),
    ComponentRule("experts", r"\.(experts|routed_experts|expert_mlp|fc[12]_latent_proj)(\.|$)",
        (("model.layers.0.mlp.experts", "MoERunner"),
        ("model.layers.0.mlp.experts.routed_experts.forward_modular", "RoutedExperts"),
        ("backbone.layers.1.mixer.experts.routed_experts", "RoutedExperts"),
        ("backbone.layers.1.mixer.fc1_latent_proj", "ReplicatedLinear"))),
    # Not the dense layers of Qwen2-MoE, Qwen2MoeMLP.
    ComponentRule("experts", r"\.(mlp|moe|block_sparse_moe|feed_forward|ffn|mixer)$",
        (("model.layers.0.mlp", "Qwen3MoeSparseMoeBlock"), ("model.layers.0.mlp", "MLPBlock"),
        ("backbone.layers.1.mixer", "NemotronHMoE")),
        r"^(?!.*(?i:mlp)$).*(?i:moe|mlpblock|sparse)"),
    ComponentRule("kv_write", r"\.(do_\w*kv_?cache_update|update_kv_cache|populate_sink_kv)$",
        (("model.layers.0.self_attn.attn.impl.do_kv_cache_update", "FlashAttentionImpl"),
        ("model.layers.0.self_attn.attn.impl.do_rope_and_kv_cache_update", "TritonAttentionImpl"),
        ("model.layers.0.self_attn.mla_attn.mla_attn.update_kv_cache", "MLAAttention"))),
    ComponentRule("qkv",
        r"\.(qkv|qkv_proj|q_proj|k_proj|v_proj|kv_proj|Wqkv|query_key_value|c_attn|q_a_proj|q_b_proj|"
        r"kv_a_proj_with_mqa|kv_b_proj|fused_qkv_a_proj|kv_a_proj)$",
        (("model.layers.0.self_attn.qkv_proj", "QKVParallelLinear"),
        ("model.layers.0.attn.qkv", "QKVParallelLinear"),
        # Of what the encoder hands over, for every token that a prompt brings.
        ("model.decoder.layers.0.encoder_attn.kv_proj", "MergedColumnParallelLinear"),
        ("backbone.layers.5.mixer.qkv_proj", "QKVParallelLinear"))),
    # Jamba has o_proj in the layer itself.
    ComponentRule("o_proj",
        r"\.(self_attn|attn|attention|self_attention|encoder_attn|cross_attn|mixer)"
        r"\.(o_proj|out_proj|dense|c_proj|wo)$|"
        r"\.layers\.\d+\.o_proj$",
        (("model.layers.0.self_attn.o_proj", "RowParallelLinear"),
        ("backbone.layers.5.mixer.o_proj", "RowParallelLinear"),
        ("model.decoder.layers.0.encoder_attn.out_proj", "RowParallelLinear"),
        ("model.layers.1.o_proj", "RowParallelLinear"))),
    ComponentRule("attention",
        r"\.(self_attn|attn|attention|self_attention|encoder_attn|cross_attn|mla_attn)(\.|$)",
        (("model.layers.0.self_attn", "Qwen3MoeAttention"),
        ("model.layers.0.self_attn.attn.impl.forward", "FlashAttentionImpl"),
        ("model.layers.0.attn.attn", "Attention"),
        ("model.decoder.layers.0.encoder_attn", "WhisperCrossAttention"),
        ("model.layers.0.self_attn.indexer.wq_b", "ReplicatedLinear"))),
    ComponentRule("attention", r"\.mixer$", (("backbone.layers.5.mixer", "NemotronHAttention"),),
        r"Attention"),
    ComponentRule("mlp", r"\._fork_mlp$",
        (("model.layers.3._fork_mlp", "Cohere2MoeDecoderLayer"),)),
    # OPT has fc1 and fc2 in the layer itself.
    ComponentRule("mlp",
        r"\.(mlp|feed_forward|ffn)(\.|$)|\.mixer\.(gate_up_proj|up_proj|down_proj|act_fn)$|"
        r"\.layers\.\d+\.(fc1|fc2|activation_fn)$",
        (("model.layers.0.mlp.gate_up_proj", "MergedColumnParallelLinear"),
        ("model.layers.0.mlp", "LlamaMLP"),
        ("backbone.layers.3.mixer.up_proj", "ColumnParallelLinear"),
        ("model.decoder.layers.0.fc1", "ColumnParallelLinear"))),
    # What a drafter makes the input of its layers with, from embedding and hidden state together. A
    # product, so that it is no embedding, whose matrix only a tied lm_head multiplies with.
    ComponentRule("mlp", r"\.layers\.\d+\.(eh_proj|input_proj)$|^(drafter\.)?model\.fc$",
        (("model.layers.61.eh_proj", "Linear"), ("drafter.model.layers.4.eh_proj", "Linear"),
        ("model.layers.0.input_proj", "Linear"),
        ("drafter.model.fc", "ReplicatedLinear"))),
    # What gives each layer an embedding of its own, gated beside its MLP.
    ComponentRule("mlp",
        r"\.(per_layer_model_projection|layers\.\d+\.per_layer_(input_gate|projection))$",
        (("model.per_layer_model_projection", "ColumnParallelLinear"),
        ("model.layers.0.per_layer_input_gate", "ReplicatedLinear"),
        ("model.layers.0.per_layer_projection", "ReplicatedLinear"))),
    ComponentRule("mlp", r"\.mixer$", (("backbone.layers.3.mixer", "NemotronHMLP"),), r"MLP$"),
    ComponentRule("ssm", r"\.mixer(\.|$)", (("backbone.layers.0.mixer.act", "SiluAndMul"),)),
)  # fmt: skip
"""Paths, each with the class of its module."""

_ATTENTION = r"Attention|Attn(?!Norm)|MLA(?!P)"
_EXPERTS = r"(MoE|Moe)(Block|Layer)?$|SparseMoe|MLPBlock$|SparseMLP$|Experts$"

CLASS_RULES: tuple[ComponentRule, ...] = (
    ComponentRule("", r"(De|En)coderLayer(V\d)?$", (("NemotronHMambaDecoderLayer",
        "NemotronHModel"),)),
    ComponentRule("kv_write", r"^vllm::\w*kv_cache_update",
        (("vllm::unified_kv_cache_update", "Attention"),)),
    ComponentRule("ssm", r"^vllm::\w*(mamba|gdn|kda|linear_attention|short_conv)",
        (("vllm::mamba_mixer2", ""), ("vllm::qwen_gdn_attention_core", ""))),
    ComponentRule("attention", r"^vllm::\w*(attention|mla)",
        (("vllm::unified_attention_with_output", "Attention"),)),
    ComponentRule("experts", r"^vllm::moe_forward", (("vllm::moe_forward", "FusedMoE"),)),
    ComponentRule("sampler", r"Sampler", (("Sampler", ""), ("TopKTopPSampler", "Sampler"),
        ("RejectionSampler", ""))),
    ComponentRule("lm_head", r"^(LogitsProcessor|ParallelLMHead|LMHead|LMHeadModel\w*Head)$",
        (("LogitsProcessor", ""), ("ParallelLMHead", "LogitsProcessor"))),
    ComponentRule("rope", r"Rotary|RoPE|Rope", (("YaRNScalingRotaryEmbedding", "OAIAttention"),
        ("MRotaryEmbedding", "Qwen2Attention"))),
    ComponentRule("norm", r"Norm(Gated)?(\d?d)?$|^RMSNorm|^LayerNorm", (("RMSNorm",
        "TransformerBlock"),
        ("LayerNorm", "BertOutput"), ("RMSNormGated", "Mixer"))),
    ComponentRule("embedding", r"Embedding(s)?$|PatchEmbed",
        (("VocabParallelEmbedding", "GptOssForCausalLM"), ("BertEmbeddings", "BertModel"))),
    ComponentRule("embedding", r"^(Conv2d|Conv3d|Embedding)$", (("Conv2d",
        "Owlv2VisionEmbeddings"),),
        r"Embed"),
    ComponentRule("ssm", r"Mamba|GatedDeltaNet|DeltaNet|SSM|LinearAttention|ShortConv",
        (("MambaMixer2", "Zamba2Layer"), ("Qwen3NextGatedDeltaNet", "Qwen3NextDecoderLayer"))),
    ComponentRule("shared_experts", r"SharedExpert|SharedMLP", (("SharedExpertMLP",
        "Qwen2MoeBlock"),)),
    ComponentRule("qkv", r"^QKV\w*Linear$|^QKVCrossParallelLinear$|^Fused\w*QKV",
        (("QKVParallelLinear", "OAIAttention"),)),
    ComponentRule("o_proj", r"^RowParallelLinear$", (("RowParallelLinear", "OAIAttention"),
        ("RowParallelLinear", "DeepseekV2MLAAttention")), _ATTENTION),
    ComponentRule("qkv", r"^(ColumnParallelLinear|MergedColumnParallelLinear|ReplicatedLinear)$",
        (("ColumnParallelLinear", "DeepseekV2MLAAttention"),), _ATTENTION),
    ComponentRule("o_proj", r"SelfOutput$", (("BertSelfOutput", "BertAttention"),)),
    ComponentRule("experts", r"FusedMoE|MoERunner|Experts|GroupedGemm|ExpertMLP", (("FusedMoE",
        "MLPBlock"),
        ("GptOssExperts", "GptOssMLP"), ("RoutedExperts", ""))),
    ComponentRule("router", r"Router|TopK|^Gate(Linear)?$|Gating|^(Replicated)?Linear$",
        (("ReplicatedLinear", "MLPBlock"), ("Linear", "MLPBlock"),
        ("GateLinear", "Qwen3MoeSparseMoeBlock"), ("ReplicatedLinear", "vllm::moe_forward")),
        rf"{_EXPERTS}|moe_forward"),
    ComponentRule("router", r"Router$|^TopK", (("GptOssTopKRouter", "GptOssMLP"),)),
    ComponentRule("experts", _EXPERTS, (("MLPBlock", "TransformerBlock"),
        ("Qwen3MoeSparseMoeBlock", "Qwen3MoeDecoderLayer"))),
    ComponentRule("attention", _ATTENTION, (("OAIAttention", "TransformerBlock"),
        ("Attention", "OAIAttention"), ("MLA", ""))),
    ComponentRule("mlp",
        r"MLP|Mlp|FeedForward|FFN|(?<!Self)Intermediate$|(?<!Self)(?<!Model)Output$",
        (("LlamaMLP", "LlamaDecoderLayer"), ("BertIntermediate", "BertLayer"),
        ("BertOutput", "BertLayer"))),
    ComponentRule("lm_head", r"^Linear$", (("Linear", "Qwen2ForCausalLM"),),
        r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|ForMaskedLM)$"),
)  # fmt: skip
"""Classes, each with the class around it."""

_Compiled = tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...]


def _compiled(rules: tuple[ComponentRule, ...]) -> _Compiled:
    return tuple((r.component, re.compile(r.pattern), re.compile(r.beside)) for r in rules)


_MODULES, _CLASSES = _compiled(MODULE_RULES), _compiled(CLASS_RULES)
_LAYER_CLASS = re.compile(r"(Layer|Block|DecoderLayer|EncoderLayer)(V\d)?$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|decoder_layers)\.(\d{1,5})(?:\.|$)")
_BARE_ATTENTION = re.compile(r"^(\d{1,5})\.attn$")
"""How vLLM names the attention of a layer whose model is one of Transformers."""
_IN_FULL = r"layers.\1.self_attn.attn"
_NO_DECODER = re.compile(r"(?:^|\.)(drafter|visual|vision\w*|audio\w*|encoder)(?=\.)")
"""Parts whose layers are none of the decoder's."""

_NUMBERED = re.compile(r"^[A-Z]\w*_\d+(\.|$)")
"""A path of classes and their running numbers, as PyTorch's profiler names modules."""
_NUMBERED_LAYER = re.compile(r"^(?:.*?\.)??\w+(?:Layer|Block)(?:V\d)?_\d+(?:\.|$)")

_OUTSIDE = re.compile(
    r"^(drafter\.)?(?:language_model\.)?(?:model|backbone|transformer|gpt_neox)\."
)
"""What the paths of everything outside the layers begin with."""


SHORTER_ROLES: tuple[tuple[str, str, tuple[str, str]], ...] = (
    (r"\.routed_experts(\..*)?$", "", ("layers.0.mlp.experts.routed_experts", "mlp.experts")),
    (r"\.experts\._shared_experts(?:\._layer)?\b", ".shared_experts",
        ("layers.0.mlp.experts._shared_experts._layer.up_proj", "mlp.shared_experts.up_proj")),
    (r"(?:\.impl)?\.(?:do_\w*kv_?cache_update|update_kv_cache|populate_sink_kv)$", ".kv_write",
        ("layers.0.self_attn.attn.impl.do_kv_cache_update", "self_attn.attn.kv_write")),
    (r"\.(?:forward_impl|conv_ssm_forward|_forward(?:_core\w*|_super)?|_full_forward|calc_kv_scales|"
        r"forward_(?:cuda|native)|_run_qsa|_short_conv|_join_mlp|_apply_async_impl)$", "",
        ("layers.0.mixer.conv_ssm_forward", "mixer")),
    (r"\._fork_mlp$", ".mlp", ("layers.0._fork_mlp", "mlp")),
    (r"norm\._forward_impl$", "norm", ("layers.0.self_attn.rope_norm._forward_impl",
        "self_attn.rope_norm")),
    (r"\.impl\.\w+$", "", ("layers.0.self_attn.attn.impl.forward", "self_attn.attn")),
    (r"\.(mla_attn|mamba)\.\1\b", r".\1",
        ("layers.0.self_attn.mla_attn.mla_attn", "self_attn.mla_attn")),
    (r"\.spark_prof_body\.run$", "",  # the marked call of a swapped kernel
        ("layers.0.self_attn.o_proj.spark_prof_body.run", "self_attn.o_proj")),
    (r"\.spark_prof_stock$", "",  # that of vLLM's own, where a swapped part calls it
        ("layers.0.self_attn.q_proj.spark_prof_stock", "self_attn.q_proj")),
)  # fmt: skip
"""What of a path says nothing about the role: pattern, what stands there instead, an example."""

PARTS: tuple[tuple[str, str, tuple[str, str]], ...] = (
    (r"^(?:.*\.)?(w13|w2|w1|w3)(?:_.*)?$", r"\1", ("w13_weight_scale", "w13")),
    (r"^W_(?:UK|K)(?!\w*scale).*$", "absorb_k", ("W_UK_T", "absorb_k")),
    (r"^W_(?:UV|V)(?!\w*scale).*$", "absorb_v", ("W_UV", "absorb_v")),
    (r"^(?:A|A_log|D|dt_bias)$", "scan", ("A_log", "scan")),
    (r"^conv_weights$", "conv1d", ("conv_weights", "conv1d")),
)  # fmt: skip
"""The parts of a module that does several things, by the tensor that each of them reads: pattern,
what stands behind the module's role, an example. Both products of experts; those of MLA in which
the up-projections of keys and values are absorbed; the convolution and the scan of a mixer."""

_PARTS = tuple((re.compile(pattern), part) for pattern, part, _ in PARTS)
_SHORTER = tuple((re.compile(pattern), shorter) for pattern, shorter, _ in SHORTER_ROLES)


@lru_cache(maxsize=65536)
def component_of(path: str, type_name: str) -> str:
    """The component of that module, or an empty string where the table has no row for it."""
    return _component(_MODULES, path, type_name)


@lru_cache(maxsize=1 << 14)
def component_of_class(name: str, around: str) -> str:
    """The component of a class inside another, empty where the table has no row for it."""
    return _component(_CLASSES, name, around)


def _component(rules: _Compiled, text: str, beside: str) -> str:
    components = (c for c, pattern, other in rules if pattern.search(text) and other.search(beside))
    return next(components, "")


def is_layer_class(name: str) -> bool:
    """Whether a class of that name is a layer of a transformer, also where there is only one."""
    return bool(_LAYER_CLASS.search(name)) and not component_of_class(name, "")


def layer_of(path: str) -> int:
    """The decoder layer in the path, -1 for none: also in a drafter and in an encoder."""
    path = _BARE_ATTENTION.sub(_IN_FULL, path)
    match = _LAYER.search(path)
    return int(match[1]) if match and not _NO_DECODER.search(path[: match.start() + 1]) else -1


def stack_of(path: str) -> tuple[str, int]:
    """What the path names before its decoder layer, and that layer; nothing and -1 for none.

    `model.layers.3.mlp` -> `model.layers`, 3.
    """
    layer = layer_of(path)
    match = _LAYER.search(path) if layer >= 0 else None
    return (path[: match.start(1) - 1] if match else "", layer)


def outer_part(path: str) -> str:
    """The part that the module lies in and that is none of the decoder, empty for none.

    `model.encoder.layers.0.mlp` -> `encoder`; `model.decoder.layers.0` -> empty.
    """
    match = _NO_DECODER.search(path)
    return match[1] if match else ""


def is_outer_part(path: str) -> bool:
    """Whether the module is such a part as a whole: `model.encoder`, `visual`."""
    match = _NO_DECODER.search(f".{path}.")
    return match is not None and match.end() == len(path) + 1


def part_of(role: str) -> str:
    """The part of the model that the role names first, empty for the decoder itself.

    `drafter.self_attn.o_proj` -> `drafter`; `encoder.mlp.fc1` -> `encoder`; `norm` -> empty.
    """
    match = _NO_DECODER.match(f"{role}.")
    return match[1] if match else ""


@lru_cache(maxsize=65536)
def role_of(path: str, tensor: str = "") -> str:
    """What the module is for in its layer: its path without the part that names the layer.

    Modules of one kind have the same role in every layer. A drafter's begin with `drafter.`, an
    encoder's with its name, so that they are never taken for the decoder's. The name of a tensor
    says of a module that does several things which one reads it (`PARTS`).

        `model.layers.3.self_attn.qkv_proj` -> `self_attn.qkv_proj`; `model.norm` -> `norm`;
        `model.layers.3` -> an empty string, for it is no part of a layer;
        `model.layers.3.mlp.experts`, `w2_weight` -> `mlp.experts.w2`;
        `Qwen3ForCausalLM_0.Qwen3DecoderLayer_3.Qwen3Attention_3` -> `Qwen3Attention`.
    """
    if tensor:
        role = role_of(path)
        parts = [p.sub(part, tensor) for p, part in _PARTS if role and p.search(tensor)]
        return ".".join([role, *parts])
    path = _BARE_ATTENTION.sub(_IN_FULL, path)
    if _NUMBERED.search(path):
        inside = _NUMBERED_LAYER.sub("", path).split(".")
        return ".".join(re.sub(r"_\d+$", "", name) for name in inside)
    match = _LAYER.search(path)
    other = _NO_DECODER.search(path[: match.start() + 1]) if match else None
    role = path[match.end() :] if match else _OUTSIDE.sub(r"\1", path)
    for pattern, shorter in _SHORTER:
        role = pattern.sub(shorter, f".{role}").removeprefix(".")
    return f"{other[1]}.{role}".rstrip(".") if other else role
