"""Which words among a kernel's arguments are believed, and whose it then is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.attribution.memory_map import (
    BUFFER,
    CACHE,
    MATRIX,
    OTHER_WEIGHT,
    MemoryMap,
    memory_map,
)
from spark_prof.analyzers.attribution.owners import KnownLaunches, Owners, owners_of
from spark_prof.traces.tables import TABLES
from spark_prof.vocabulary import COMPONENTS
from tests.analyzers.attribution.memory import tensor
from tests.rows import each_row

W0, W1, OUTSIDE = 0x10000, 0x20000, 0x90000
TENSORS = [
    tensor("model.layers.0.self_attn.qkv_proj", W0),
    tensor("model.layers.1.self_attn.qkv_proj", W1),
]
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)"
_INFO = "at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>"
SELECT = (
    "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, "
    f"unsigned int, 2, 2, -2>({_INFO}, {_INFO}, {_INFO}, int, int, unsigned int, long)"
)
NAMES = (
    *(
        "kernel",
        "other_kernel",
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
        "flash_fwd",
        CAST,
        SELECT,
    ),
)
KERNEL, OTHER, PRODUCT, FLASH, ELEMENTWISE, LOOKUP = range(6)


def word(launch: int, address: int, argument: int = 0, offset: int = 0, size: int = 8) -> Any:
    """One word among the arguments of a launch."""
    return launch, argument, offset, size, address


def owned(
    tensors: Sequence[Mapping[str, Any]],
    words: Sequence[Any],
    names: Sequence[int],
    steps: Sequence[int] = (),
) -> tuple[MemoryMap, Owners]:
    """The map, and what it says of launches of those names."""
    columns = ["launch", "argument", "offset", "size", "address"]
    frame = pd.DataFrame(words, columns=columns, dtype=np.int64)
    memory = memory_map(pd.DataFrame(tensors, columns=TABLES["tensors"].schema.names))
    named = np.array([COMPONENTS.index("attention") if n == FLASH else -1 for n in names], np.int8)
    launches = KnownLaunches(np.array(names), np.array(steps or [0] * len(names)), named, NAMES)
    return memory, owners_of(memory, frame, frame["launch"].to_numpy(), launches)


def owners(
    tensors: Sequence[Mapping[str, Any]],
    words: Sequence[Any],
    names: Sequence[int],
    steps: Sequence[int] = (),
    several: Sequence[int] = (),
) -> list[tuple[str, int, int, str]]:
    """Component, layer, rank and role of each launch; `several` have tensors of several layers."""
    memory, found = owned(tensors, words, names, steps)
    assert found.open.tolist() == [
        layer < 0 and (rank in (CACHE, BUFFER) or n in several)
        for n, (rank, layer) in enumerate(zip(found.rank, found.layer, strict=True))
    ]
    return [
        (COMPONENTS[c] if c >= 0 else "", layer, rank, memory.roles[role])
        for c, layer, rank, role in zip(
            found.component.tolist(), found.layer.tolist(), found.rank.tolist(),
            found.role.tolist(), strict=True,
        )
    ]  # fmt: skip


NONE = ("", -1, 0, "")
QKV = [("qkv", n, MATRIX, "self_attn.qkv_proj") for n in range(2)]


SCALE = [tensor("model.layers.0.self_attn.attn", W0 + 4, 4, kind="buffer", name="_k_scale")]
INNER = tensor("model.layers.0.self_attn.qkv_proj", W0, 8, kind="buffer", name="scale")
DAMAGED = [tensor("m", 1 << 62, 1 << 62), tensor("m", -5, 100), tensor("m", W0, 0)]


@each_row(
    ("tensors", "address", "found"),
    [
        (TENSORS, W0, QKV[0]),
        (TENSORS, W0 + 4080, QKV[0]),
        *((TENSORS, at, NONE) for at in (W0 + 4096, W0 - 16, W0 + 8, OUTSIDE, -1)),
        pytest.param(SCALE, W0 + 4, ("attention", 0, BUFFER, "self_attn.attn"),
                     id="a tensor's start needs no alignment"),
        pytest.param([*TENSORS, INNER], W0 + 8, NONE, id="where a smaller tensor ends none begins"),
        pytest.param([*DAMAGED, *TENSORS], W0, QKV[0], id="damaged tensors are left out"),
        pytest.param([], W0, NONE, id="no tensors"),
    ],
)  # fmt: skip
def test_a_pointer_is_believed_inside_a_tensor_and_aligned(
    tensors: Sequence[Mapping[str, Any]], address: int, found: Any
) -> None:
    assert owners(tensors, [word(0, address)], [KERNEL]) == [found]


def struct(launch: int, address: int, offset: int = 64) -> Any:
    return word(launch, address, offset=offset, size=288)


def packed(launch: int, address: int, offset: int = 64) -> Any:
    return word(launch, address, argument=-1, offset=offset, size=512)


CACHE_OF_1 = tensor("model.layers.1.self_attn.attn", W1, kind="kv")


@each_row("given", [struct, packed])
def test_a_word_in_a_struct_is_believed_if_each_launch_has_one_of_its_kind_there(
    given: Any,
) -> None:
    pair = [given(0, W0), given(1, W1)]
    assert owners(TENSORS, pair, [KERNEL] * 2) == QKV
    assert owners([TENSORS[0], CACHE_OF_1], pair, [KERNEL] * 2) == [NONE] * 2
    for elsewhere in (OUTSIDE, W1 + 8):
        words = [given(0, W0), given(1, elsewhere)]
        assert owners(TENSORS, words, [KERNEL] * 2) == [NONE] * 2
        # A kernel of another name has other parameters, and another offset is another one.
        assert owners(TENSORS, words, [KERNEL, OTHER]) == [QKV[0], NONE]
        words.append(given(1, W1, offset=72))
        assert owners(TENSORS, words, [KERNEL] * 2) == [NONE] * 2


def test_a_weight_is_either_operand_of_a_packed_product() -> None:
    """cuBLAS may swap them from one shape to the next; each stands in its buffer several times."""
    left = [packed(0, W0, offset=n) for n in (176, 432, 816)]
    left += [packed(0, OUTSIDE, offset=n) for n in (240, 496, 880)]
    right = [packed(1, OUTSIDE, offset=n) for n in (176, 432, 816)]
    right += [packed(1, W1, offset=n) for n in (240, 496, 880)]
    assert owners(TENSORS, left + right, [KERNEL] * 2) == [QKV[0], QKV[1]]
    both = left[:3] + [packed(0, W1, offset=n) for n in (240, 496, 880)]
    beside = [packed(1, W1, offset=n) for n in (304, 560, 944)]
    assert owners(TENSORS, both + beside, [KERNEL] * 2) == [NONE, QKV[1]]


def test_one_layer_s_weight_in_every_launch_is_what_was_left_on_the_stack() -> None:
    """As an expert's weight in FlashAttnFwdCombine's struct, in the launches of all layers."""
    words = [struct(launch, W1) for launch in range(3)]
    assert owners(TENSORS, words, [KERNEL] * 3) == [NONE] * 3
    # In steps with one launch each it may be that layer's own kernel.
    assert owners(TENSORS, words, [KERNEL] * 3, [0, 1, 2]) == [QKV[1]] * 3
    # A packed buffer holds nothing stale: a drafter may run three times a step.
    words = [packed(launch, W1) for launch in range(3)]
    assert owners(TENSORS, words, [KERNEL] * 3) == [QKV[1]] * 3


def test_a_name_that_tells_another_component_makes_a_struct_s_word_stale() -> None:
    """One launch of an attention kernel, with a word of experts beside its cache."""
    rows = [tensor("model.layers.1.mlp.experts", W0, shape="8x64x32"), CACHE_OF_1]
    words = [struct(0, W0), struct(0, W1, offset=72)]
    assert owners(rows, words, [FLASH]) == [("attention", 1, CACHE, "self_attn.attn")]
    assert owners(rows, words, [KERNEL])[0][:2] == ("experts", 1)
    # A plain pointer is believed whatever the name.
    assert owners(rows, [word(0, W0)], [FLASH])[0][:2] == ("experts", 1)


def test_one_packed_kernel_may_serve_several_roles() -> None:
    gate = tensor("model.layers.0.mlp.gate", W1)
    found = owners([TENSORS[0], gate], [packed(0, W0), packed(1, W1)], [PRODUCT] * 2)
    assert found == [QKV[0], ("router", 0, MATRIX, "mlp.gate")]


def test_the_largest_matrix_owns_a_kernel_then_weights_caches_and_buffers() -> None:
    layer = "model.layers.2"
    rows = [
        tensor(f"{layer}.self_attn.rotary_emb", 0x1000, 1 << 20, kind="buffer"),
        tensor(f"{layer}.self_attn.attn", 0x200000, 1 << 21, kind="kv"),
        tensor(f"{layer}.input_layernorm", 0x500000, 64, shape="32"),
        tensor(f"{layer}.self_attn.o_proj", 0x600000, 64, shape="32", name="bias"),
        tensor(f"{layer}.mlp.gate", 0x700000, 512),
        tensor(f"{layer}.mlp.experts", 0x800000, 4096, shape="8x64x32"),
    ]
    expected = ["rope", "attention", "norm", "norm", "router", "experts"]
    for count, component in enumerate(expected, 1):
        words = [word(0, row["address"], n) for n, row in enumerate(rows[:count])]
        assert owners(rows, words, [KERNEL])[0][0] == component, count


def test_memory_of_several_layers_proves_what_they_have_in_common() -> None:
    """One buffer for the caches of two layers; the scale beside it has one layer."""
    rows = [
        tensor(f"model.layers.{n}.self_attn.attn", W0, kind="kv", name="kv_cache") for n in range(2)
    ]
    rows.append(tensor("model.layers.1.self_attn.attn", W1, 4, kind="buffer", name="_k_scale"))
    found = owners(rows, [word(0, W0), word(1, W0), word(1, W1, 1)], [KERNEL] * 2)
    assert found == [("attention", n, CACHE, "self_attn.attn") for n in (-1, 1)]


def test_of_one_layer_s_modules_the_most_exact_owns_what_they_hold() -> None:
    """MLA: its wrapper holds o_proj as well, and what it absorbs are parts of kv_b_proj."""
    at = "model.layers.3.self_attn"
    rows = [
        tensor(f"{at}.mla_attn.o_proj", W0, component="attention"),
        tensor(f"{at}.o_proj", W0),
        tensor(f"{at}.kv_b_proj", W1),
        tensor(f"{at}.mla_attn", W1, 4000, name="W_UK_T", component="attention"),
        tensor(f"{at}.mla_attn", W1 + 96, 4000, name="W_UV", component="attention"),
        tensor(f"{at}.conv", OUTSIDE, kind="buffer", component="ssm"),
        tensor(f"{at}.conv.conv1d", OUTSIDE, component="ssm"),
        *[tensor("twice", 0)] * 2,
    ]
    words = [word(n, address) for n, address in enumerate((W0, W1, W1 + 96, OUTSIDE, 0))]
    assert owners(rows, words, [KERNEL] * 5) == [
        ("o_proj", 3, MATRIX, "self_attn.o_proj"),
        ("attention", 3, MATRIX, "self_attn.mla_attn.absorb_k"),
        ("attention", 3, MATRIX, "self_attn.mla_attn.absorb_v"),
        ("ssm", 3, MATRIX, "self_attn.conv.conv1d"),
        ("", -1, MATRIX, "twice"),
    ]


def test_attention_and_mamba_in_one_buffer_have_nothing_in_common() -> None:
    rows = [
        tensor("model.layers.0.self_attn.attn", W0, kind="kv"),
        tensor("model.layers.1.mamba", W0, 2048, kind="state", component="ssm"),
    ]
    found = owners(rows, [word(0, W0), word(1, W0 + 2048)], [KERNEL] * 2)
    assert found == [("", -1, CACHE, ""), ("attention", 0, CACHE, "self_attn.attn")]


def test_a_module_that_stands_in_several_layers_has_none() -> None:
    """cos_sin_cache, named by the first layer that has it."""
    rows = [tensor("model.layers.0.self_attn.rotary_emb", W0, kind="buffer", layer=-1)]
    assert owners(rows, [word(0, W0)], [KERNEL])[0][:3] == ("rope", -1, BUFFER)
    rows = [tensor("model.layers.0.mlp.up_proj", W0, layer=-1)]
    assert owners(rows, [word(0, W0)], [KERNEL], several=[0])[0][:3] == ("mlp", -1, MATRIX)


@each_row(
    "paths",
    [("model.embed_tokens", "lm_head"), ("lm_head", "model.embed_tokens"), ("model.embed_tokens",)],
)
def test_of_a_tied_matrix_a_product_computes_logits(paths: Sequence[str]) -> None:
    rows = [tensor(path, W0) for path in paths]
    found = owners(rows, [word(0, W0), packed(1, W0)], [KERNEL, PRODUCT])
    assert [row[:3] for row in found] == [("embedding", -1, MATRIX), ("lm_head", -1, MATRIX)]


def test_of_an_embedding_fused_with_a_norm_the_norm_is_read_in_full() -> None:
    rows = [
        tensor("model.embed_tokens", W0, 1 << 15),
        tensor("model.layers.0.input_layernorm", W1, 64, shape="32"),
        tensor("model.layers.0.self_attn.rotary_emb", 0x30000, kind="buffer"),
    ]
    lookup, both = [word(0, W0), word(0, 0x30000, 1)], [word(0, W0), word(0, W1, 1)]
    assert owners(rows, lookup, [KERNEL])[0][:2] == ("embedding", -1)
    assert owners(rows, both, [KERNEL])[0] == ("norm", 0, OTHER_WEIGHT, "input_layernorm")
    # A product with its matrix computes logits, whatever bias it adds.
    assert owners(rows, [packed(0, W0), packed(0, W1, 72)], [PRODUCT])[0][0] == "lm_head"


def test_the_pointers_of_pytorch_s_elementwise_kernels_are_believed() -> None:
    """A cast reads a weight in one launch and an activation in the next."""
    given = [word(0, W0, 2, 8, 16), word(1, OUTSIDE, 2, 8, 16)]
    assert owners(TENSORS, given, [ELEMENTWISE] * 2) == [QKV[0], NONE]
    assert owners(TENSORS, given, [KERNEL] * 2) == [NONE] * 2


def weights_read(
    tensors: Sequence[Mapping[str, Any]], words: Sequence[Any], names: Sequence[int]
) -> set[tuple[int, int]]:
    """Launch and row of `tensors` of each weight that is believed to be read."""
    memory, found = owned(tensors, words, names)
    return {
        (int(launch), row)
        for launch, number in zip(found.words[0], memory.weight[found.words[1]], strict=True)
        if number >= 0
        for row in memory.weights[number]
    }


def test_a_launch_reads_the_weights_of_the_words_that_are_believed() -> None:
    tied = [tensor("model.embed_tokens", W0), tensor("lm_head", W0)]
    cache = tensor("model.layers.0.self_attn.attn", W1, kind="kv")
    words = [word(0, W0), word(0, W1, 1), struct(1, W0), struct(2, OUTSIDE)]
    assert weights_read([*tied, cache], words, [KERNEL, OTHER, OTHER]) == {(0, 0), (0, 1)}
    # Of a part of a matrix that begins with it, and of a view inside it, the smallest counts.
    parts = [tensor("model.layers.0.mlp.experts", W0, 4096, name=name) for name in ("w13", "w1")]
    parts[1]["bytes"] = 2048
    parts.append(tensor("model.layers.0.mlp.gate", W0 + 3072, 512))
    words = [word(0, W0), word(1, W0 + 2048), word(2, W0 + 3072), word(3, W0 + 3584)]
    expected = {(0, 1), (1, 0), (2, 2), (3, 0)}
    assert weights_read(parts, words, [KERNEL, OTHER, PRODUCT, FLASH]) == expected


def test_a_weight_of_several_layers_proves_what_these_have_in_common() -> None:
    rows = [
        tensor("model.layers.0.self_attn.o_proj", W0),
        tensor("model.layers.1.self_attn.qkv_proj", W0),
        *(tensor(f"model.layers.{n}.mlp.gate", W1) for n in range(2)),
    ]
    found = owners(rows, [word(0, W0), word(1, W1)], [KERNEL] * 2, several=[0, 1])
    assert found == [("", -1, MATRIX, ""), ("router", -1, MATRIX, "mlp.gate")]


def test_a_norm_of_each_head_is_no_matrix() -> None:
    norm = tensor("model.layers.0.self_attn.q_norm", W0, shape="32x128")
    small = tensor("model.layers.0.mlp.gate", W1, 64)
    (found,) = owners([norm, small], [word(0, W0), word(0, W1, 1)], [KERNEL])
    assert found[:3] == ("router", 0, MATRIX)


def test_of_equal_weights_the_one_of_a_plain_pointer_is_read() -> None:
    words = [struct(0, W0), word(0, W1, 3)]
    assert owners(TENSORS, words, [KERNEL]) == [QKV[1]]


def test_a_cache_without_a_layer_leaves_the_layer_open() -> None:
    """The runner's own caches, which no module names."""
    cache = tensor("", W0, kind="kv", layer=-1, component="", name="kv_caches.0")
    scale = tensor("model.layers.1.self_attn.attn", W1, 4, kind="buffer", name="_k_scale")
    found = owners([cache, scale], [word(0, W0), word(1, W0), word(1, W1, 1)], [KERNEL] * 2)
    assert [layer for _, layer, _, _ in found] == [-1, 1]


def test_a_packed_word_of_eight_bytes_is_no_plain_pointer() -> None:
    words = [word(0, W0, argument=-1), word(1, OUTSIDE, argument=-1)]
    assert owners(TENSORS, words, [KERNEL] * 2) == [NONE] * 2


def test_a_lookup_is_of_the_matrix_that_its_struct_begins_with() -> None:
    """GLM-4.7 with MTP on vLLM 0.33: a drafter's attention was left behind the used dimensions."""
    rows = [
        tensor("model.embed_tokens", W0, layer=-1),
        tensor("drafter.model.layers.4.mtp_block.self_attn.mla_attn", W1, layer=-1),
    ]

    def words(launch: int) -> list[Any]:
        info = {"argument": 1, "size": 216}
        return [word(launch, W0, **info), word(launch, W1, offset=40, **info)]

    both = [*words(0), *words(1)]
    found = ("embedding", -1, MATRIX, "embed_tokens")
    assert owners(rows, both, [LOOKUP] * 2) == [found] * 2
    # It is a pointer, also where another launch of the name has none in the live model.
    assert owners(rows, [*words(0), word(1, OUTSIDE, 1, size=216)], [LOOKUP] * 2) == [found, NONE]
    # Of other structs no place is known to be none.
    assert owners(rows, both, [KERNEL] * 2)[0][0] == "attention"
