"""Reads from config.json what a decode step needs to know beyond the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.ceilings.model import Architecture, State

_PATTERN = {"M": "mamba", "*": "full", "E": "moe", "-": "mlp"}
_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "moe": "moe",
    "mlp": "mlp",
    "conv": "conv",
}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """What the configuration says; zeros and empty texts for what it does not."""
    read = Config.of(config)
    kinds = layer_kinds(read)
    return Architecture(
        name=read.text("architectures", "model_type"),
        layers=read.layers,
        hidden=read.hidden,
        experts=read.experts,
        experts_per_token=read.experts_per_token,
        vocabulary=read.whole("vocab_size"),
        states=_states(read, Counter(kinds)),
    )


def layer_kinds(read: Config) -> list[str]:
    """What each decoder layer is: full, window, linear, mamba, conv, moe or mlp.

    A layer with a mixer and an MLP is named by its mixer; only models whose layers hold one of the
    two have the kinds moe and mlp.
    """
    named = read.words("layer_types", "layers_block_type")
    if named:
        kinds = [_KINDS.get(word, "full") for word in named[: read.layers or None]]
        # Newer configurations call Mamba's layers linear attention too.
        is_mamba = not read.whole("linear_num_value_heads") and _mamba_size(read) > 0
        return ["mamba" if kind == "linear" and is_mamba else kind for kind in kinds]
    pattern = read.text("hybrid_override_pattern")
    if pattern:
        return [_PATTERN[letter] for letter in pattern[: read.layers] if letter in _PATTERN]
    window = "window" if read.window else "full"
    layers = range(read.layers)
    every = read.whole("full_attention_interval")
    if every:
        return ["linear" if (layer + 1) % every else "full" for layer in layers]
    attention = read.numbers("attn_layer_indices")
    if attention:
        return ["full" if layer in attention else "mamba" for layer in layers]
    period, offset = read.whole("attn_layer_period"), read.whole("attn_layer_offset")
    if period:
        return ["full" if layer % period == offset else "mamba" for layer in layers]
    every = read.whole("sliding_window_pattern", "_sliding_window_pattern")
    if not every and read.text("model_type") in ("gpt_oss", "gemma2"):
        every = 2
    if every:
        return ["full" if (layer + 1) % every == 0 else window for layer in layers]
    return [window] * read.layers


def _states(read: Config, layers: Counter[str]) -> tuple[State, ...]:
    """What each sequence keeps, kind by kind."""
    attention = {kind: layers[kind] for kind in ("full", "window") if layers[kind]}
    found = []
    rank = read.whole("kv_lora_rank")
    for kind, count in attention.items():
        window = read.window if kind == "window" else 0
        found += _latent(read, count, rank) if rank else _grouped(read, count, window)
    recurrent = [("linear", _delta_net(read)), ("mamba", _mamba(read))]
    width = read.state_bytes
    found += [
        State(layers[kind], "recurrent", elements, bytes_per_element=width)
        for kind, elements in recurrent
        if layers[kind] and elements
    ]
    return tuple(found)


def _grouped(read: Config, layers: int, window: int) -> list[State]:
    """Keys and values of grouped-query attention; the arithmetic is that of both products."""
    width = read.head_dim + (read.whole("v_head_dim") or read.head_dim)
    state = State(
        layers,
        "window" if window else "kv",
        read.kv_heads * width,
        heads=read.kv_heads,
        window=window,
        operations=2 * read.heads * width,
    )
    return [state] if state.elements else []


def _latent(read: Config, layers: int, rank: int) -> list[State]:
    """The latent of multi-head latent attention, and the index of sparse attention over it."""
    rope = read.whole("qk_rope_head_dim")
    selected = read.whole("index_topk")
    operations = 2 * read.heads * (2 * rank + rope)
    found = [State(layers, "latent", rank + rope, window=selected, operations=operations)]
    index = read.whole("index_head_dim")
    if selected and index:
        # The index is kept in FP8 with a scale of four bytes a token, as vLLM does.
        heads = read.whole("index_n_heads")
        found.append(
            State(layers, "latent", index + 4, operations=2 * heads * index, bytes_per_element=1)
        )
    return found


def _delta_net(read: Config) -> int:
    """Elements of a gated delta net's state and of its convolution's."""
    keys = read.whole("linear_num_key_heads") * read.whole("linear_key_head_dim")
    values = read.whole("linear_num_value_heads") * read.whole("linear_value_head_dim")
    taps = max(read.whole("linear_conv_kernel_dim") - 1, 0)
    return values * read.whole("linear_key_head_dim") + taps * (2 * keys + values)


def _mamba(read: Config) -> int:
    """Elements of a Mamba state and of its convolution's."""
    size = _mamba_size(read)
    groups = read.whole("n_groups", "mamba_n_groups")
    inner = read.mamba_heads * read.mamba_head_dim or read.hidden * max(
        read.whole("mamba_expand", "expand"), 1
    )
    taps = max(read.whole("conv_kernel", "mamba_d_conv") - 1, 0)
    return inner * size + taps * (inner + 2 * groups * size)


def _mamba_size(read: Config) -> int:
    return read.whole("ssm_state_size", "mamba_d_state", "state_size")
