"""What lies between two anchors of a compiled decoder layer.

The order of the model's code: launches in order of time, graphs in order of capture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.attribution.order import (
    CODES,
    STRANGERS,
    Launched,
    launch_order,
    nodes_of,
    place_by_order,
    products_of,
)
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row
from tests.support import Piece, Recorded, event, kernel, kineto, layer_row, step

from .graphs import Captured, captured_node, clone_of, graph_launch

PRODUCTS = {"qkv": 1, "o_proj": 1, "router": 1, "mlp": 2}


def place(text: str, products: Mapping[str, int] | None = PRODUCTS) -> list[str]:
    """Places a line of rows.

    `A3` is attention of layer 3, `K3` KV write, `E3` experts, `E` experts known by name only, `G` a
    product (`g` its later stretch), `o` what can open a model, `e` another kernel to be placed, `x`
    one to leave alone and `|` the next step.
    """
    anchors = {"A": "attention", "K": "kv_write", "E": "experts"}
    rows: list[tuple[int, str | None, int]] = []
    step = 0
    for word in text.split():
        if word == "|":
            step += 1
        elif word[0] in anchors:
            rows.append((step, anchors[word[0]], int(word[1:] or -1)))
        else:
            rows.append((step, None if word == "x" else "", -1))
    words = [word for word in text.split() if word != "|"]
    gemm = np.array([word in "Gg" for word in words])
    loose = np.array([name == "" for _, name, _ in rows], bool)
    launched = Launched(
        step=np.array([step for step, _, _ in rows], np.int32),
        layer=np.array([layer for _, _, layer in rows], np.int32),
        component=np.array([CODES.get(name or "", -1) for _, name, _ in rows], np.int8),
        loose=loose,
        gemm=gemm,
        begins=np.array([word != "g" for word in words], bool),
        opens=np.array([word == "o" for word in words], bool),
    )
    component, layer = place_by_order(launched, products)
    names = [*COMPONENTS, "?"]
    return [f"{names[c]}{n if n >= 0 else ''}" for c, n in
            zip(component[loose], layer[loose], strict=True)]  # fmt: skip


@each_row(
    ("rows", "wanted"),
    [
        pytest.param("A0 G e G e E0 e G e K1", "o_proj0 norm0 router0 router0 norm1 qkv1 rope1",
         id="a layer with experts"),
        pytest.param("A0 G e G e G e G e K1", "o_proj0 norm0 mlp0 mlp0 mlp0 norm1 qkv1 rope1",
         id="a dense layer"),
        pytest.param("A0 e G e G e E0", "o_proj0 o_proj0 norm0 router0 router0",
         id="what converts o_proj's input is o_proj's"),
        pytest.param("A0 G g e G g E G K1", "o_proj0 o_proj0 norm0 router0 router0 qkv1",
                     id="stretches of one product, experts without a layer"),
        pytest.param("e e G e K0", "norm0 norm0 qkv0 rope0", id="the first segment"),
        pytest.param("A7 G e G e G e", "o_proj7 norm7 mlp7 mlp7 mlp7 norm",
                     id="the last segment of a dense model: the final norm has no layer"),
        pytest.param("A7 G e G e G e G e", "o_proj7 norm7 mlp7 mlp7 mlp7 norm lm_head ?",
                     id="the logits behind a dense model"),
        pytest.param("E7 e G e", "norm lm_head ?", id="the logits behind experts"),
        pytest.param("E7 e G e G e", "? ? ? ? ?", id="two products behind experts"),
        pytest.param("K0 e e A0", "?0 ?0", id="inside one attention: the layer only"),
        pytest.param("E0 e e E0", "?0 ?0", id="inside one layer's experts: the layer only"),
        pytest.param("A0 e E0", "?", id="products that nobody recognised"),
        pytest.param("A0 G G e G e E0 e G e K1", "? ? ? ? ? norm1 qkv1 rope1",
                     id="a layer that deviates abstains alone"),
        pytest.param("A0 G e G e G e K1 A1 G e G e G e G e K2",
                     "? ? ? ? ? ? o_proj1 norm1 mlp1 mlp1 mlp1 norm2 qkv2 rope2",
                     id="a dense layer that deviates abstains alone"),
        pytest.param("A0 G e E0 e G e K1", "o_proj0 norm0 norm1 qkv1 rope1",
                     id="experts that call their router themselves"),
        pytest.param("A0 G e G e G e G e K2", "? " * 8, id="a layer that nobody saw between"),
        pytest.param("K0 e G A0", "? ?", id="a product inside an attention"),
        pytest.param("A0 G x e G e E0", "o_proj0 norm0 router0 router0",
                     id="rows to be left alone do not count"),
        pytest.param("A0 G e G G e | e G e K0", "o_proj0 norm0 mlp0 mlp0 norm norm0 qkv0 rope0",
                     id="a segment ends with its step"),
        pytest.param("A0 G e G e E | E e G e K0", "o_proj0 norm0 router0 router0 norm0 qkv0 rope0",
         id="experts are not those of the step before"),
        pytest.param("A0 E0 | e G e | K0 A0", "? ? ?", id="a step without anchors tells nothing"),
        pytest.param("e G e", "? ? ?", id="no anchor at all"),
        pytest.param("e o e G e K0 | o e G K0 e o A0",
                     "embedding embedding norm0 qkv0 rope0 embedding norm0 qkv0 ?0 ?0",
                     id="what opens a step is the embedding"),
        pytest.param("e G o e K0 A0 G o E0", "norm0 qkv0 rope0 rope0 o_proj0 norm0",
                     id="nothing opens a step behind its first product"),
    ],
)  # fmt: skip
def test_segments(rows: str, wanted: str) -> None:
    assert place(rows) == wanted.split()


@each_row(
    ("name", "rows", "wanted"),
    [
        ("qkv", "E0 e G e G e K1", "norm1 qkv1 norm1 qkv1 rope1"),
        ("o_proj", "A0 G e G e G e E0", "o_proj0 o_proj0 o_proj0 norm0 router0 router0"),
    ],
)
def test_a_part_of_two_products(name: str, rows: str, wanted: str) -> None:
    assert place(rows, PRODUCTS | {name: 2}) == wanted.split()


def test_layers_follow_each_other() -> None:
    layer = "e G e K{0} A{0} G e G e E{0}"
    text = " ".join(layer.format(number) for number in range(3))
    wanted = "norm{0} qkv{0} rope{0} o_proj{0} norm{0} router{0} router{0}"
    assert place(text) == " ".join(wanted.format(number) for number in range(3)).split()


def _layers(*rows: tuple[str, str], count: int = 3, kind: str = "Linear") -> pd.DataFrame:
    """The `layers` table of a model whose layers all have these modules: path and component."""
    return pd.DataFrame(
        [
            layer_row(
                f"model.layers.{n}.{path}", n, component,
                quant_method="" if component in ("norm", "attention") else "Unquantized", type=kind,
            )
            for n in range(count)
            for path, component in rows
        ]
    )  # fmt: skip


NORMS = (("input_layernorm", "norm"), ("post_attention_layernorm", "norm"))
LLAMA = (
    ("self_attn.qkv_proj", "qkv"), ("self_attn.q_norm", "norm"), ("self_attn.o_proj", "o_proj"),
    ("mlp.gate_up_proj", "mlp"), ("mlp.down_proj", "mlp"),
)  # fmt: skip
DEEPSEEK = (
    ("self_attn.q_proj", "qkv"), ("self_attn.kv_a_proj_with_mqa", "qkv"),
    ("self_attn.kv_b_proj", "qkv"), ("self_attn.o_proj", "o_proj"), ("mlp.gate", "router"),
)  # fmt: skip


def test_products_of_a_model_whose_layers_are_alike() -> None:
    table = _layers(*NORMS, *LLAMA)
    assert products_of(table) == {"qkv": 1, "o_proj": 1, "router": 0, "mlp": 2}
    tower = table.iloc[:7].assign(path="visual." + table["path"].iloc[:7])
    assert products_of(pd.concat([tower, table])) == products_of(table)


@each_row("dense", [{0}, {2}, {0, 1}])
def test_some_layers_may_have_an_mlp_in_place_of_experts(dense: set[int]) -> None:
    """As the first ones of a model like DeepSeek's, and every fourth one of others."""
    table = _layers(*NORMS, *LLAMA, ("mlp.gate", "router"), count=4)
    of_dense = table["layer"].isin(dense)
    table = table[of_dense & (table["component"] != "router") | ~of_dense
                  & (table["component"] != "mlp")]  # fmt: skip
    assert products_of(table) == {"qkv": 1, "o_proj": 1, "router": 1, "mlp": 2}


@each_row(
    ("table", "config"),
    [
        pytest.param(_layers(*NORMS, *DEEPSEEK), {}, id="MLA by its modules"),
        pytest.param(_layers(*NORMS, *LLAMA, kind="MLAAttention"), {}, id="MLA by its class"),
        pytest.param(
            pd.concat([_layers(*NORMS, *LLAMA), _layers(("mixer.in_proj", "ssm"), count=1)]), {},
            id="Mamba in one layer",
        ),
        pytest.param(pd.concat([_layers(*NORMS, *LLAMA), _layers(*NORMS, *LLAMA[3:], count=5)]), {},
         id="layers without attention"),
        pytest.param(_layers(NORMS[0], *LLAMA), {}, id="one norm for attention and mlp"),
        pytest.param(_layers(*NORMS, *LLAMA), {"architectures": ["GPTNeoXForCausalLM"]},
         id="GPT-NeoX"),
        pytest.param(_layers(*NORMS, *LLAMA), {"parallel_attn": True}, id="Falcon's config"),
        pytest.param(_layers(*NORMS, *LLAMA, kind="EncoderOnlyAttention"), {}, id="an encoder"),
        pytest.param(pd.concat([_layers(*NORMS, *LLAMA), _layers(LLAMA[0], count=1)]), {},
         id="a layer with one product more"),
        pytest.param(_layers(*LLAMA).iloc[:0], {}, id="no table"),
    ],
)  # fmt: skip
def test_a_model_that_is_none_of_these_is_not_placed(
    table: pd.DataFrame, config: dict[str, object]
) -> None:
    assert products_of(table, config) is None
    assert place("A0 G e G e E0 e G e K1", products_of(table, config)) == ["?"] * 7


def test_each_row_of_strangers_knows_its_example() -> None:
    for kind, _, pattern, example in STRANGERS:
        assert re.search(pattern, example), kind
        assert not re.search(pattern, "model.layers.0.self_attn.qkv_proj"), kind
        assert not re.search(pattern, "Qwen3MoeForCausalLM"), kind


LAUNCHES: tuple[tuple[str, Sequence[Any], int, int, str], ...] = (
    ("two streams in the order of their launches",
     [kernel("first", 500, 600, 1, 100, stream=7), kernel("second", 400, 450, 2, 200, stream=8),
      kernel("third", 450, 460, 3, 300, stream=8)], 0, 1, "first second third"),
    ("a graph of two streams in the order of its capture",
     graph_launch(1, 50, ("b", 1, 100, 7), ("d", 3, 110, 8), ("a", 0, 120, 7), ("c", 2, 130, 8)),
     4, 1, "a b c d"),
    ("pieces of a graph and kernels between them",
     [*graph_launch(1, 50, ("b", 1, 300, 7), ("a", 0, 310, 7)),
      *kernel("between", 200, 250, 2, 100),
      *graph_launch(3, 150, ("d", 3, 260, 8), ("c", 2, 290, 8))], 4, 1, "a b between c d"),
    ("replays of one graph do not mix",
     [*graph_launch(1, 50, ("b1", 1, 100, 7), ("a1", 0, 300, 8)),
      *graph_launch(2, 60, ("b2", 1, 150, 7), ("a2", 0, 350, 8))], 2, 1, "a1 b1 a2 b2"),
    ("a graph that nobody saw captured in the order of the device",
     graph_launch(1, 50, ("x", 1, 100, 7), ("y", 0, 120, 8)), 0, 1, "x y"),
    ("steps stay apart",
     [kernel("late", 1500, 1600, 1, 100), kernel("next", 1200, 1300, 2, 1100)], 0, 2, "late next"),
    ("what has no known launch stands where it started, in no step and so before them",
     [kernel("first", 500, 600, 1, 100),
      event("kernel", "alone", 150, 160, 7, correlation=99, device=0, stream=7),
      kernel("second", 700, 750, 2, 200)], 0, 1, "alone first second"),
    ("of two calls with one number the first counts",
     [event("cuda_runtime", "cudaLaunchKernelExC", 100, 101, correlation=1),
      *kernel("first", 500, 600, 1, 300), *kernel("second", 400, 450, 2, 200)], 0, 1,
     "first second"),
)  # fmt: skip


@each_row("what, rows, nodes, steps, wanted", LAUNCHES)
def test_kernels_in_launch_order(
    tmp_path: Path, what: str, rows: Sequence[Any], nodes: int, steps: int, wanted: str
) -> None:
    piece = Piece([step(n, 1000 * n, 1000 * n + 900) for n in range(steps)], (), kineto(*rows))
    recorded = Recorded({0: [piece]})
    bundle = Captured(range(100, 100 + nodes), ()).assemble(recorded, tmp_path / "b")
    found = bundle.frame("kernels", 0)
    assert found["start_ns"].is_monotonic_increasing
    nodes_seen = nodes_of(bundle, 0, found["graph_node"].to_numpy())
    places = launch_order(found, bundle.frame("host", 0), nodes_seen)
    names = found["name"] if places is None else found["name"].iloc[places]
    assert names.tolist() == wanted.split(), what


def test_clones_lead_to_the_captured_nodes(tmp_path: Path) -> None:
    wanted = np.array([clone_of(1), captured_node(0), 12345, 0, clone_of(0)])
    recorded = Recorded({0: [Piece([step(0, 0, 900)], (), kineto())]})
    bundle = Captured(range(100, 102), ()).assemble(recorded, tmp_path / "b")
    found = nodes_of(bundle, 0, wanted)
    assert found.tolist() == [captured_node(1), captured_node(0), 0, 0, captured_node(0)]
