"""Which component a module belongs to, by its class and that of the module around it.

PyTorch's profiler names a module by its class alone. One rule table, first match wins; each row
carries examples that are its test. A class that no row knows counts to what is around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["RULES", "ClassRule", "component_of_class", "is_layer_class"]


@dataclass(frozen=True)
class ClassRule:
    """Classes that match, inside a class that matches `around`, belong to the component.

    Attributes:
        component: the component; empty for a module whose children decide.
        pattern: searched in the class's name.
        examples: (class, class around it) that match.
        around: searched in the name of the class around it, empty for any.
    """

    component: str
    pattern: str
    examples: tuple[tuple[str, str], ...]
    around: str = ""


_ATTENTION = r"Attention|Attn(?!Norm)|MLA(?!P)"
_EXPERTS = r"(MoE|Moe)(Block|Layer)?$|SparseMoe|MLPBlock$|SparseMLP$|Experts$"

RULES: tuple[ClassRule, ...] = (
    ClassRule("", r"(De|En)coderLayer(V\d)?$", (("NemotronHMambaDecoderLayer", "NemotronHModel"),)),
    ClassRule("kv_write", r"^vllm::\w*kv_cache_update",
        (("vllm::unified_kv_cache_update", "Attention"),)),
    ClassRule("ssm", r"^vllm::\w*(mamba|gdn|kda|linear_attention|short_conv)",
        (("vllm::mamba_mixer2", ""), ("vllm::qwen_gdn_attention_core", ""))),
    ClassRule("attention", r"^vllm::\w*(attention|mla)",
        (("vllm::unified_attention_with_output", "Attention"),)),
    ClassRule("experts", r"^vllm::moe_forward", (("vllm::moe_forward", "FusedMoE"),)),
    ClassRule("sampler", r"Sampler",
        (("Sampler", ""), ("TopKTopPSampler", "Sampler"), ("RejectionSampler", ""))),
    ClassRule("lm_head", r"^(LogitsProcessor|ParallelLMHead|LMHead|LMHeadModel\w*Head)$",
        (("LogitsProcessor", ""), ("ParallelLMHead", "LogitsProcessor"))),
    ClassRule("rope", r"Rotary|RoPE|Rope", (("YaRNScalingRotaryEmbedding", "OAIAttention"),
        ("MRotaryEmbedding", "Qwen2Attention"))),
    ClassRule("norm", r"Norm(Gated)?(\d?d)?$|^RMSNorm|^LayerNorm", (("RMSNorm", "TransformerBlock"),
        ("LayerNorm", "BertOutput"), ("RMSNormGated", "Mixer"))),
    ClassRule("embedding", r"Embedding(s)?$|PatchEmbed",
        (("VocabParallelEmbedding", "GptOssForCausalLM"), ("BertEmbeddings", "BertModel"))),
    ClassRule("embedding", r"^(Conv2d|Conv3d|Embedding)$", (("Conv2d", "Owlv2VisionEmbeddings"),),
        r"Embed"),
    ClassRule("ssm", r"Mamba|GatedDeltaNet|DeltaNet|SSM|LinearAttention|ShortConv",
        (("MambaMixer2", "Zamba2Layer"), ("Qwen3NextGatedDeltaNet", "Qwen3NextDecoderLayer"))),
    ClassRule("shared_experts", r"SharedExpert|SharedMLP", (("SharedExpertMLP", "Qwen2MoeBlock"),)),
    ClassRule("qkv", r"^QKV\w*Linear$|^QKVCrossParallelLinear$|^Fused\w*QKV",
        (("QKVParallelLinear", "OAIAttention"),)),
    ClassRule("o_proj", r"^RowParallelLinear$", (("RowParallelLinear", "OAIAttention"),
        ("RowParallelLinear", "DeepseekV2MLAAttention")), _ATTENTION),
    ClassRule("qkv", r"^(ColumnParallelLinear|MergedColumnParallelLinear|ReplicatedLinear)$",
        (("ColumnParallelLinear", "DeepseekV2MLAAttention"),), _ATTENTION),
    ClassRule("o_proj", r"SelfOutput$", (("BertSelfOutput", "BertAttention"),)),
    ClassRule("experts", r"FusedMoE|MoERunner|Experts|GroupedGemm|ExpertMLP",
        (("FusedMoE", "MLPBlock"), ("GptOssExperts", "GptOssMLP"), ("RoutedExperts", ""))),
    ClassRule("router", r"Router|TopK|^Gate(Linear)?$|Gating|^(Replicated)?Linear$",
        (("ReplicatedLinear", "MLPBlock"), ("Linear", "MLPBlock"),
        ("GateLinear", "Qwen3MoeSparseMoeBlock"), ("ReplicatedLinear", "vllm::moe_forward")),
        rf"{_EXPERTS}|moe_forward"),
    ClassRule("router", r"Router$|^TopK", (("GptOssTopKRouter", "GptOssMLP"),)),
    ClassRule("experts", _EXPERTS, (("MLPBlock", "TransformerBlock"),
        ("Qwen3MoeSparseMoeBlock", "Qwen3MoeDecoderLayer"))),
    ClassRule("attention", _ATTENTION,
        (("OAIAttention", "TransformerBlock"), ("Attention", "OAIAttention"), ("MLA", ""))),
    ClassRule("mlp", r"MLP|Mlp|FeedForward|FFN|(?<!Self)Intermediate$|(?<!Self)(?<!Model)Output$",
        (("LlamaMLP", "LlamaDecoderLayer"), ("BertIntermediate", "BertLayer"),
        ("BertOutput", "BertLayer"))),
    ClassRule("lm_head", r"^Linear$", (("Linear", "Qwen2ForCausalLM"),),
        r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|ForMaskedLM)$"),
)  # fmt: skip

_COMPILED = tuple((r.component, re.compile(r.pattern), re.compile(r.around)) for r in RULES)
_LAYER = re.compile(r"(Layer|Block|DecoderLayer|EncoderLayer)(V\d)?$")


@lru_cache(maxsize=1 << 14)
def component_of_class(name: str, around: str) -> str:
    """The component of a class inside another, empty where the table has no row for it."""
    for component, pattern, inside in _COMPILED:
        if pattern.search(name) and inside.search(around):
            return component
    return ""


def is_layer_class(name: str) -> bool:
    """Whether a class of that name is a layer of a transformer, also where there is only one."""
    return bool(_LAYER.search(name)) and not component_of_class(name, "")
