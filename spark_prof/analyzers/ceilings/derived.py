"""Derives a model's modules from its configuration, where no tensors are to be seen.

Names and shapes are those of Hugging Face's transformers for the families that it has. What the
configuration does not say, such as biases and norms, is too small to matter and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.ceilings.ceiling_rows import Module
from spark_prof.analyzers.ceilings.config import Config, layer_kinds
from spark_prof.analyzers.ceilings.schemes import BYTES, Schemes
from spark_prof.rules.tensor_names import place_of

# fmt: off
KNOWN_FAMILIES = frozenset(
    {
        "bamba", "cohere2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "ernie4_5_moe",
        "exaone4", "falcon", "falcon_h1", "gemma2", "gemma3", "glm4", "glm4_moe",
        "glm4_moe_lite", "gpt2", "gpt_neox", "gpt_oss", "granitemoe", "granitemoehybrid",
        "granitemoeshared", "llama", "llama4", "minimax_m2", "ministral3", "mistral", "mixtral",
        "nemotron_h", "olmoe", "opt", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3",
        "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl_moe", "seed_oss",
        "starcoder2",
    }
)
# fmt: on
"""Families whose shapes were compared with those of transformers; others are taken for a Llama or
a Mixtral."""

_TWO_PROJECTIONS = frozenset(
    {"falcon", "gpt2", "gpt_neox", "nemotron_h", "opt", "starcoder2", "bloom", "nemotron"}
)
"""Families whose MLP has no gate."""

_GATED_ATTENTION = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe"})
"""Families whose attention has a gate of the queries' size."""

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
    mixers_only = read.family == "nemotron_h"
    modules = []

    def add(path: str, rows: int, columns: int, form: str) -> None:
        parameters = rows * columns
        if parameters:
            matrix = min(rows, columns) > 1
            modules.append(Module(path, parameters, parameters * BYTES[form], form, matrix))

    for layer, kind in enumerate(layer_kinds(read)):
        for name, rows, columns in _layer(read, layer, kind):
            # Its layers hold one thing each, and that is called a mixer whatever it is.
            below = f"mixer.{name.partition('.')[2]}" if mixers_only else name
            path = f"model.layers.{layer}.{below}"
            component = place_of(path, 0).component
            # A format for experts is no format for the few rows that mix them.
            chosen = schemes.of(path) if component in _QUANTIZED and rows > 1 else None
            add(path, rows, columns, chosen[0] if chosen else plain)
    add("model.embed_tokens", vocabulary, read.hidden, plain)
    if read.values.get("tie_word_embeddings") is not True:
        add("lm_head", vocabulary, read.hidden, plain)
    return modules


def _layer(read: Config, layer: int, kind: str) -> Iterator[Shape]:
    if kind in ("full", "window"):
        yield from _latent(read) if read.whole("kv_lora_rank") else _attention(read)
        if read.family == "falcon_h1":
            yield from _mamba(read)
    elif kind == "linear":
        yield from _delta_net(read)
    elif kind == "mamba":
        yield from _mamba(read)
    elif kind == "conv":
        width = read.whole("conv_dim") or read.hidden
        yield "conv.in_proj", 3 * width, read.hidden
        yield "conv.out_proj", read.hidden, width
    if kind in ("moe", "mlp") or read.family != "nemotron_h":
        yield from _feed_forward(read, routed=_is_routed(read, layer, kind))


def _attention(read: Config) -> Iterator[Shape]:
    """Grouped-query attention; a gated one has a second query of the same size."""
    queries = read.heads * read.head_dim
    gated = read.flag("attn_output_gate", default=read.family in _GATED_ATTENTION)
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
    index = read.whole("index_head_dim")
    if index and query_rank:
        # DeepSeek's sparse attention chooses by an attention of its own.
        yield "self_attn.indexer.wq_b", read.whole("index_n_heads") * index, query_rank
        yield "self_attn.indexer.wk", index, read.hidden
        yield "self_attn.indexer.weights_proj", read.whole("index_n_heads"), read.hidden


def _delta_net(read: Config) -> Iterator[Shape]:
    """A gated delta net, as Qwen3-Next has it."""
    rows = 2 * read.delta_keys + 2 * read.delta_values
    yield "linear_attn.in_proj_qkvz", rows, read.hidden
    yield "linear_attn.in_proj_ba", 2 * read.whole("linear_num_value_heads"), read.hidden
    yield "linear_attn.out_proj", read.hidden, read.delta_values


def _mamba(read: Config) -> Iterator[Shape]:
    """A Mamba-2 mixer, as Nemotron-H, Bamba and Granite have it."""
    inner = read.whole("mamba_d_ssm") or read.mamba_inner
    rows = 2 * inner + 2 * read.mamba_groups * read.mamba_size + read.mamba_heads
    yield "mamba.in_proj", rows, read.hidden
    yield "mamba.out_proj", read.hidden, inner


def _is_routed(read: Config, layer: int, kind: str) -> bool:
    if not read.experts or kind == "mlp":
        return False
    if chosen := read.words("mlp_layer_types"):
        return chosen[layer : layer + 1] != ["dense"]
    first = read.whole("first_k_dense_replace", "moe_layer_start_index")
    if layer in read.numbers("mlp_only_layers") or layer < first:
        return False
    step = read.whole(
        "decoder_sparse_step", "moe_layer_interval", "moe_layer_freq", "interleave_moe_layer_step"
    )
    return kind == "moe" or not step or (layer + 1) % step == 0


def _feed_forward(read: Config, *, routed: bool) -> Iterator[Shape]:
    width = read.expert_width
    shared = read.whole(
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
    )
    if routed:
        yield "mlp.gate", read.experts, read.hidden
        yield from _projections(read, "mlp.experts.*", width, copies=read.experts)
        several = read.whole("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        # Llama 4 has one that is as large as a routed one, and does not say so.
        several = several or int(read.family == "llama4")
        shared = shared or several * width
    else:
        dense = read.whole("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim")
        if not (shared and read.family == "granitemoehybrid"):
            yield from _projections(read, "mlp", dense or 4 * read.hidden)
            return
    if shared:
        yield from _projections(read, "mlp.shared_experts", shared)


def _projections(read: Config, path: str, width: int, copies: int = 1) -> Iterator[Shape]:
    if read.family not in _TWO_PROJECTIONS:
        yield f"{path}.gate_proj", copies * width, read.hidden
    yield f"{path}.up_proj", copies * width, read.hidden
    yield f"{path}.down_proj", copies * read.hidden, width
