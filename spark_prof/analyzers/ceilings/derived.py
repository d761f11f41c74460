"""Derives a model's modules from its configuration, where no tensors are to be seen.

Names and shapes are those of Hugging Face's transformers for the families that it has. What the
configuration does not say, such as biases and norms, is too small to matter and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.ceilings.architecture import layer_kinds
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.ceilings.formats import BYTES
from spark_prof.analyzers.ceilings.modules import Module
from spark_prof.analyzers.ceilings.schemes import Schemes
from spark_prof.analyzers.ceilings.tensor_names import place_of

__all__ = ["derived_modules"]

_QUANTIZED = frozenset({"qkv", "o_proj", "mlp", "experts", "shared_experts", "ssm"})
"""Components whose linear layers a quantization is for; others must be named."""

_WIDTHS = {"float32": "fp32", "float16": "fp16"}

Shape = tuple[str, int, int]
"""Path below the layer, and the two sizes of the matrix; all experts of a layer are one row."""


def derived_modules(read: Config, schemes: Schemes) -> list[Module]:
    """The modules that the configuration describes; none where it says too little."""
    if not (read.layers and read.hidden):
        return []
    plain = _WIDTHS.get(read.text("dtype", "torch_dtype"), "bf16")
    vocabulary = read.whole("vocab_size")
    mixers_only = _is_nemotron(read)
    found = []
    for layer, kind in enumerate(layer_kinds(read)):
        for name, rows, columns in _layer(read, layer, kind):
            # Its layers hold one thing each, and that is called a mixer whatever it is.
            below = f"mixer.{name.partition('.')[2]}" if mixers_only else name
            path = f"model.layers.{layer}.{below}"
            component = place_of(path, 0).component
            chosen = schemes.format_of(path) if component in _QUANTIZED else None
            # A format for experts is no format for the few rows that mix them.
            found.append(_module(path, rows, columns, (chosen if rows > 1 else None) or plain))
    found.append(_module("model.embed_tokens", vocabulary, read.hidden, plain))
    if read.values.get("tie_word_embeddings") is not True:
        found.append(_module("lm_head", vocabulary, read.hidden, plain))
    return [module for module in found if module.parameters]


def _module(path: str, rows: int, columns: int, form: str) -> Module:
    parameters = rows * columns
    return Module(path, parameters, parameters * BYTES[form], form, min(rows, columns) > 1)


def _layer(read: Config, layer: int, kind: str) -> Iterator[Shape]:
    """The matrices of one decoder layer."""
    if kind in ("full", "window"):
        yield from _latent(read) if read.whole("kv_lora_rank") else _attention(read)
    elif kind == "linear":
        yield from _delta_net(read)
    elif kind == "mamba":
        yield from _mamba(read)
    elif kind == "conv":
        width = read.whole("conv_dim") or read.hidden
        yield "conv.in_proj", 3 * width, read.hidden
        yield "conv.out_proj", read.hidden, width
    if kind in ("moe", "mlp") or not _is_nemotron(read):
        yield from _feed_forward(read, routed=_is_routed(read, layer, kind))


def _attention(read: Config) -> Iterator[Shape]:
    """Grouped-query attention; a gated one has a second query of the same size."""
    queries = read.heads * read.head_dim
    gated = read.flag("attn_output_gate", default=read.text("model_type") == "qwen3_next")
    values = read.whole("v_head_dim") or read.head_dim
    yield "self_attn.q_proj", queries * (2 if gated else 1), read.hidden
    yield "self_attn.k_proj", read.kv_heads * read.head_dim, read.hidden
    yield "self_attn.v_proj", read.kv_heads * values, read.hidden
    yield "self_attn.o_proj", read.hidden, read.heads * values


def _latent(read: Config) -> Iterator[Shape]:
    """Multi-head latent attention, as DeepSeek has it."""
    plain, rope = read.whole("qk_nope_head_dim"), read.whole("qk_rope_head_dim")
    rank, values = read.whole("kv_lora_rank"), read.whole("v_head_dim")
    queries = read.heads * (plain + rope)
    query_rank = read.whole("q_lora_rank")
    if query_rank:
        yield "self_attn.q_a_proj", query_rank, read.hidden
        yield "self_attn.q_b_proj", queries, query_rank
    else:
        yield "self_attn.q_proj", queries, read.hidden
    yield "self_attn.kv_a_proj_with_mqa", rank + rope, read.hidden
    yield "self_attn.kv_b_proj", read.heads * (plain + values), rank
    yield "self_attn.o_proj", read.hidden, read.heads * values


def _delta_net(read: Config) -> Iterator[Shape]:
    """A gated delta net, as Qwen3-Next has it."""
    keys = read.whole("linear_num_key_heads") * read.whole("linear_key_head_dim")
    heads = read.whole("linear_num_value_heads")
    values = heads * read.whole("linear_value_head_dim")
    yield "linear_attn.in_proj_qkvz", 2 * keys + 2 * values, read.hidden
    yield "linear_attn.in_proj_ba", 2 * heads, read.hidden
    yield "linear_attn.out_proj", read.hidden, values


def _mamba(read: Config) -> Iterator[Shape]:
    """A Mamba-2 mixer, as Nemotron-H, Bamba and Granite have it."""
    expand = max(read.whole("mamba_expand", "expand"), 1)
    inner = read.mamba_heads * read.mamba_head_dim or read.hidden * expand
    groups = read.whole("n_groups", "mamba_n_groups")
    size = read.whole("ssm_state_size", "mamba_d_state", "state_size")
    rows = 2 * inner + 2 * groups * size + read.mamba_heads
    yield "mamba.in_proj", rows, read.hidden
    yield "mamba.out_proj", read.hidden, inner


def _is_routed(read: Config, layer: int, kind: str) -> bool:
    """Whether the layer's MLP is one of experts."""
    if not read.experts or kind == "mlp":
        return False
    if layer in read.numbers("mlp_only_layers") or layer < read.whole("first_k_dense_replace"):
        return False
    step = read.whole("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")
    return kind == "moe" or not step or (layer + 1) % step == 0


def _feed_forward(read: Config, *, routed: bool) -> Iterator[Shape]:
    """An MLP, or a router with its experts."""
    if not routed:
        width = read.whole("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size")
        yield from _projections(read, "mlp", width)
        return
    width = read.expert_width
    yield "mlp.gate", read.experts, read.hidden
    yield from _projections(read, "mlp.experts.*", width, copies=read.experts)
    shared = (
        read.whole(
            "moe_shared_expert_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
        )
        or read.whole("n_shared_experts", "num_shared_experts") * width
    )
    if shared:
        yield from _projections(read, "mlp.shared_experts", shared)


def _projections(read: Config, path: str, width: int, copies: int = 1) -> Iterator[Shape]:
    """The two projections of an MLP, and its gate; Nemotron-H squares instead."""
    if not _is_nemotron(read):
        yield f"{path}.gate_proj", copies * width, read.hidden
    yield f"{path}.up_proj", copies * width, read.hidden
    yield f"{path}.down_proj", copies * read.hidden, width


def _is_nemotron(read: Config) -> bool:
    return read.text("model_type") == "nemotron_h"
