"""Figures of a model's configuration, whatever its family calls them and wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where the language model's part stands among others."""
_PARTS = ("moe", "ffn_config", "attn_config")
"""Where some families put a part of the language model's own figures."""
_LARGEST = 1 << 40
_MOST_LAYERS = 256
_WIDTHS = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


@dataclass(frozen=True)
class Config:
    """A configuration that has been looked into for the part about the language model."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Config:
        """Of a model with images or sound, the language model's part comes first."""
        values = dict(config)
        for _ in _INNER:
            inner = next((values[key] for key in _INNER if isinstance(values.get(key), dict)), None)
            if inner is None:
                break
            values = {k: v for k, v in values.items() if k not in _INNER} | inner
        for part in _PARTS:
            inner = values.get(part)
            values = inner | values if isinstance(inner, dict) else values
        return cls(values)

    def whole(self, *names: str) -> int:
        """The first of these that is a whole number above 0; 0 if none is.

        Of a list with a number for each layer it is the first.
        """
        for name in names:
            value = self.values.get(name)
            if isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
                return value
        return 0

    def text(self, *names: str) -> str:
        """The first of these that is a text, or a list that begins with one."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, str) and value:
                return value
        return ""

    def words(self, *names: str) -> list[str]:
        """The first of these that is a list of texts."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
                return value[:_MOST_LAYERS]
        return []

    def numbers(self, name: str) -> frozenset[int]:
        """The whole numbers of a list."""
        value = self.values.get(name)
        return (
            frozenset(v for v in value if isinstance(v, int))
            if isinstance(value, list)
            else frozenset()
        )

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A yes or no."""
        value = self.values.get(name)
        return value if isinstance(value, bool) else default

    @property
    def layers(self) -> int:
        """Decoder layers."""
        found = self.whole("num_hidden_layers", "n_layer", "num_layers", "n_layers")
        pattern = self.words("layer_types", "layers_block_type")
        listed = pattern or self.text("hybrid_override_pattern")
        return min(found or len(listed), _MOST_LAYERS)

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.whole("hidden_size", "n_embd", "d_model", "dim")

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.whole("num_attention_heads", "n_head", "n_heads")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        if self.flag("multi_query"):
            return 1
        named = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads")
        return self.whole(*named) or self.heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        given = self.whole("head_dim", "attention_head_dim", "kv_channels")
        return given or (self.hidden // self.heads if self.heads else 0)

    @property
    def experts(self) -> int:
        """Routed experts of a layer."""
        return self.whole(
            "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts"
        )

    @property
    def experts_per_token(self) -> int:
        """Routed experts that each token takes."""
        return self.whole(
            "num_experts_per_tok",
            "experts_per_token",
            "num_experts_per_token",
            "moe_top_k",
            "moe_topk",
            "moe_k",
            "top_k_experts",
            "num_selected_experts",
        )

    @property
    def expert_width(self) -> int:
        """Inner width of one routed expert."""
        return self.whole("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")

    @property
    def window(self) -> int:
        """Tokens of a sliding window or a chunk, 0 where attention sees everything."""
        if not self.flag("use_sliding_window", default=True):
            return 0
        return self.whole("sliding_window", "attention_chunk_size", "sliding_window_size")

    @property
    def mamba_heads(self) -> int:
        """Heads of a Mamba-2 mixer."""
        return self.whole("mamba_num_heads", "mamba_n_heads")

    @property
    def mamba_head_dim(self) -> int:
        """Width of such a head."""
        return self.whole("mamba_head_dim", "mamba_d_head")

    @property
    def state_bytes(self) -> float:
        """Bytes of one element of a recurrent state: as configured, else as the model."""
        named = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "dtype", "torch_dtype")
        return _WIDTHS.get(self.text(*named), 2.0)
