"""Figures of a model's configuration, whatever its family calls them and wherever they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spark_prof.analyzers.ceilings.ceiling_rows import Architecture, SequenceState

_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where the language model's part stands among others."""
_PARTS = ("moe", "ffn_config", "attn_config")
"""Where some families put a part of the language model's own figures."""
_LARGEST = 1 << 40
_MOST_LAYERS = 256
_WIDTHS = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


class Config:
    """A configuration, looked into for the part about the language model; 0 for what is missing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        values = dict(config)
        for _ in _INNER:
            inner = next((values[key] for key in _INNER if isinstance(values.get(key), dict)), None)
            if inner is None:
                break
            values = {k: v for k, v in values.items() if k not in _INNER} | inner
        for part in _PARTS:
            inner = values.get(part)
            values = inner | values if isinstance(inner, dict) else values
        self.values: Mapping[str, Any] = values
        pattern = self.words("layer_types", "layers_block_type")
        listed = pattern or self.text("hybrid_override_pattern")
        layers = self.whole("num_hidden_layers", "n_layer", "num_layers", "n_layers")
        self.layers = min(layers or len(listed), _MOST_LAYERS)  # decoder layers
        self.hidden = self.whole("hidden_size", "n_embd", "d_model", "dim")
        self.heads = self.whole("num_attention_heads", "n_head", "n_heads")
        named = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads")
        self.kv_heads = 1 if self.flag("multi_query") else self.whole(*named) or self.heads
        head_dim = self.whole("head_dim", "attention_head_dim", "kv_channels")
        self.head_dim = head_dim or (self.hidden // self.heads if self.heads else 0)
        # Routed experts of a layer, how many of them each token takes, and the inner width of one.
        self.experts = self.whole(
            "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts"
        )
        self.experts_per_token = self.whole(
            "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k",
            "moe_topk", "moe_k", "top_k_experts", "num_selected_experts",
        )  # fmt: skip
        widths = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
        self.expert_width = self.whole(*widths)
        # Tokens of a sliding window or a chunk, 0 where attention sees everything.
        slides = self.flag("use_sliding_window", default=True)
        windows = ("sliding_window", "attention_chunk_size", "sliding_window_size")
        self.window = self.whole(*windows) if slides else 0
        # The model's type without what marks its part for text.
        self.family = self.text("model_type").removesuffix("_text")
        # A Mamba mixer: heads of Mamba-2, inner width, groups and size of the state.
        self.mamba_heads = self.whole("mamba_num_heads", "mamba_n_heads")
        expanded = self.hidden * max(self.whole("mamba_expand", "expand"), 1)
        width = self.whole("mamba_head_dim", "mamba_d_head")
        self.mamba_inner = self.mamba_heads * width or expanded
        self.mamba_groups = self.whole("n_groups", "mamba_n_groups")
        self.mamba_size = self.whole("ssm_state_size", "mamba_d_state", "state_size")
        # A gated delta net: elements of its keys and values.
        self.delta_keys = self.whole("linear_num_key_heads") * self.whole("linear_key_head_dim")
        delta_heads = self.whole("linear_num_value_heads")
        self.delta_values = delta_heads * self.whole("linear_value_head_dim")
        # Of one element of a recurrent state: as configured, else as the model.
        types = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "dtype", "torch_dtype")
        self.state_bytes = _WIDTHS.get(self.text(*types), 2.0)

    def whole(self, *names: str) -> int:
        """The first of these that is a whole number above 0; 0 if none is.

        Of a list with a number for each layer it is the first.
        """
        for value in self._firsts(names):
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
                return value
        return 0

    def text(self, *names: str) -> str:
        """The first of these that is a text, or a list that begins with one."""
        return next((v for v in self._firsts(names) if isinstance(v, str) and v), "")

    def _firsts(self, names: Iterable[str]) -> Iterator[object]:
        for name in names:
            value = self.values.get(name)
            yield value[0] if isinstance(value, list) and value else value

    def words(self, *names: str) -> list[str]:
        """The first of these that is a list of texts."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
                return value[:_MOST_LAYERS]
        return []

    def numbers(self, name: str) -> set[int]:
        """The whole numbers of a list."""
        value = self.values.get(name)
        return {v for v in value if isinstance(v, int)} if isinstance(value, list) else set()

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A yes or no."""
        value = self.values.get(name)
        return value if isinstance(value, bool) else default


_PATTERN = {"M": "mamba", "*": "full", "E": "moe", "-": "mlp"}
_KINDS = {
    "full_attention": "full", "attention": "full", "sliding_attention": "window",
    "chunked_attention": "window", "linear_attention": "linear", "mamba": "mamba",
    "mamba2": "mamba", "moe": "moe", "mlp": "mlp", "conv": "conv",
}  # fmt: skip


def architecture_of(read: Config) -> Architecture:
    """What the configuration says; zeros and empty texts for what it does not."""
    return Architecture(
        name=read.text("architectures", "model_type"),
        layers=read.layers,
        hidden=read.hidden,
        experts=read.experts,
        experts_per_token=read.experts_per_token,
        vocabulary=read.whole("vocab_size"),
        states=_states(read, Counter(layer_kinds(read))),
    )


def layer_kinds(read: Config) -> list[str]:
    """What each decoder layer is: full, window, linear, mamba, conv, moe or mlp.

    A layer with a mixer and an MLP is named by its mixer; only models whose layers hold one of the
    two have the kinds moe and mlp.
    """
    if named := read.words("layer_types", "layers_block_type"):
        kinds = [_KINDS.get(word, "full") for word in named[: read.layers or None]]
        # Newer configurations call Mamba's layers linear attention too.
        is_mamba = not read.whole("linear_num_value_heads") and read.mamba_size > 0
        return ["mamba" if kind == "linear" and is_mamba else kind for kind in kinds]
    if pattern := read.text("hybrid_override_pattern"):
        return [_PATTERN[letter] for letter in pattern[: read.layers] if letter in _PATTERN]
    window = "window" if read.window else "full"
    layers = range(read.layers)
    if every := read.whole("full_attention_interval"):
        return ["linear" if (layer + 1) % every else "full" for layer in layers]
    if attention := read.numbers("attn_layer_indices"):
        return ["full" if layer in attention else "mamba" for layer in layers]
    if period := read.whole("attn_layer_period"):
        offset = read.whole("attn_layer_offset")
        return ["full" if layer % period == offset else "mamba" for layer in layers]
    every = read.whole("sliding_window_pattern", "_sliding_window_pattern")
    if not every and read.text("model_type") in ("gpt_oss", "gemma2"):
        every = 2
    if every:
        return ["full" if (layer + 1) % every == 0 else window for layer in layers]
    return [window] * read.layers


def _states(read: Config, layers: Counter[str]) -> tuple[SequenceState, ...]:
    states = []
    for kind in ("full", "window"):
        if layers[kind]:
            window = read.window if kind == "window" else 0
            states += _latent(read, layers[kind]) or _grouped(read, layers[kind], window)
    recurrent = (("linear", _delta_net(read)), ("mamba", _mamba(read)))
    states += [
        SequenceState(layers[kind], "recurrent", elements, bytes_per_element=read.state_bytes)
        for kind, elements in recurrent
        if layers[kind] and elements
    ]
    return tuple(states)


def _grouped(read: Config, layers: int, window: int) -> list[SequenceState]:
    """Keys and values of grouped-query attention; the arithmetic is that of both products."""
    width = read.head_dim + (read.whole("v_head_dim") or read.head_dim)
    kind, operations = "window" if window else "kv", 2 * read.heads * width
    state = SequenceState(layers, kind, read.kv_heads * width, read.kv_heads, window, operations)
    return [state] if state.elements else []


def _latent(read: Config, layers: int) -> list[SequenceState]:
    """The latent of multi-head latent attention, and the index of sparse attention over it."""
    rank, rope = read.whole("kv_lora_rank"), read.whole("qk_rope_head_dim")
    if not rank:
        return []
    selected, index = read.whole("index_topk"), read.whole("index_head_dim")
    operations = 2 * read.heads * (2 * rank + rope)
    states = [SequenceState(layers, "latent", rank + rope, window=selected, operations=operations)]
    if selected and index:
        # The index is kept in FP8 with a scale of four bytes a token, as vLLM does.
        operations = 2 * read.whole("index_n_heads") * index
        states.append(
            SequenceState(layers, "latent", index + 4, operations=operations, bytes_per_element=1)
        )
    return states


def _delta_net(read: Config) -> int:
    """Elements of a gated delta net's state and of its convolution's."""
    taps = max(read.whole("linear_conv_kernel_dim") - 1, 0)
    state = read.delta_values * read.whole("linear_key_head_dim")
    return state + taps * (2 * read.delta_keys + read.delta_values)


def _mamba(read: Config) -> int:
    """Elements of a Mamba state and of its convolution's."""
    taps = max(read.whole("conv_kernel", "mamba_d_conv") - 1, 0)
    convolved = read.mamba_inner + 2 * read.mamba_groups * read.mamba_size
    return read.mamba_inner * read.mamba_size + taps * convolved
