"""Which ranges name a module of the model, and what they say about it.

A range names a module by its path (``model.layers.3.mlp``) or, as PyTorch's profiler does, by its
class and a running number (``nn.Module: RMSNorm_5``); then its component is that of its class and
of the class around it, and a class that no row knows counts to what is around it. One rule table,
first match wins; each row carries examples that are its test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class ModuleName:
    """What a range's name says about a module."""

    path: str = ""  # its path in the model, empty where only the class is known
    type: str = ""
    number: int = -1  # the class's running number, -1 without one


@dataclass(frozen=True)
class NameRule:
    """Names that match name a module: groups `path`, `layer`, or `type` and `number`."""

    writer: str
    pattern: str
    examples: tuple[tuple[str, ModuleName], ...]


_PATH = r"[A-Za-z_]\w*(?:\.\w+)*"
_LAYER_PATH = (
    r"(?:\w+\.)*(?:layers|h|blocks|block|layer|decoder_layers)\.\d{1,5}(?:\.\w+)*"
    r"|(?:model|transformer|language_model|backbone)\.\w+(?:\.\w+)*"
)

RULES: tuple[NameRule, ...] = (
    NameRule("PyTorch's profiler, with_stack and with_modules",
        r"nn\.Module: (?P<type>[A-Za-z_]\w*?)_(?P<number>\d{1,9})",
        (("nn.Module: QKVParallelLinear_12", ModuleName("", "QKVParallelLinear", 12)),
        ("nn.Module: Owlv2EncoderLayer_3", ModuleName("", "Owlv2EncoderLayer", 3)))),
    NameRule("record_function around each module", rf"(?:mod|module):\s?(?P<path>{_PATH})",
        (("mod:model.layers.0.attn.qkv_proj", ModuleName("model.layers.0.attn.qkv_proj")),
        ("mod:logits_processor", ModuleName("logits_processor")))),
    # vLLM's and SGLang's layer-wise NVTX ranges are the text of a Python dictionary.
    NameRule("layer-wise NVTX", rf"\{{'Module': '(?:top\.)?(?P<path>{_PATH})'.*",
        (("{'Module': 'top.model.layers.3.mlp', 'TrainableParams': {}}",
        ModuleName("model.layers.3.mlp")),)),
    NameRule("the operators that vLLM hides from its compiler",
        r"(?P<type>vllm::(?:unified_\w*(?:attention|kv_cache)\w*|mla_\w+|moe_forward\w*|mamba_mixer2?|"
        r"\w*(?:gdn|kda|linear)_attention\w*|short_conv|plamo2_mamba_mixer))",
        (("vllm::unified_attention_with_output",
        ModuleName("", "vllm::unified_attention_with_output")),
        ("vllm::unified_kv_cache_update", ModuleName("", "vllm::unified_kv_cache_update")),
        ("vllm::moe_forward_shared", ModuleName("", "vllm::moe_forward_shared")),
        ("vllm::mamba_mixer2", ModuleName("", "vllm::mamba_mixer2")))),
    NameRule("a range around a layer, or a part of one, as scripts set them",
        r"(?i:(?:decoder|encoder|transformer)?[_ ]?(?:layer|block))[_ .:#]?(?P<layer>\d{1,4})"
        r"(?:[_ .:-](?P<part>[A-Za-z]\w*))?", (("layer_0", ModuleName("layers.0")),
        ("Decoder layer 12", ModuleName("layers.12")), ("block.3", ModuleName("layers.3")),
        ("layer_7_computation", ModuleName("layers.7.computation")),
        ("layer_2_mlp", ModuleName("layers.2.mlp")))),
    NameRule("Megatron's and others' NVTX ranges by path",
        rf"(?P<path>{_LAYER_PATH})(?:\.forward)?", (("model.layers.3.self_attn.qkv_proj",
        ModuleName("model.layers.3.self_attn.qkv_proj")),
        ("transformer.h.11.mlp", ModuleName("transformer.h.11.mlp")),
        ("model.embed_tokens", ModuleName("model.embed_tokens")))),
)  # fmt: skip

_COMPILED = tuple(re.compile(rule.pattern, re.DOTALL) for rule in RULES)
_LONGEST = 4096


def names_module(name: str) -> bool:
    """Whether a range of that name is a call of a module."""
    return module_name(name) is not None


@lru_cache(maxsize=1 << 16)
def module_name(name: str) -> ModuleName | None:
    """What the name says about a module, up to the 4,096th letter; None where it names none."""
    for pattern in _COMPILED:
        match = pattern.fullmatch(name[:_LONGEST])
        if match:
            found = match.groupdict()
            number = int(found["number"]) if found.get("number") else -1
            layer = f"layers.{int(found['layer'])}" if found.get("layer") else ""
            layer += f".{found['part']}" if found.get("part") else ""
            return ModuleName(found.get("path") or layer, found.get("type") or "", number)
    return None
