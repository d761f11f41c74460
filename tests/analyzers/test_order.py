"""What lies between two anchors of a compiled decoder layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from spark_prof.analyzers.order import CODES, Launched, place_by_order
from spark_prof.vocabulary import COMPONENTS

PRODUCTS = {"qkv": 1, "o_proj": 1, "router": 1}


def place(text: str, products: Mapping[str, int] = PRODUCTS) -> list[str]:
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


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        pytest.param(
            "A0 G e G e E0 e G e K1", "o_proj0 norm0 router0 router0 norm1 qkv1 rope1",
            id="a layer with experts",
        ),
        pytest.param(
            "A0 G e G e G e G e K1", "o_proj0 norm0 mlp0 mlp0 mlp0 norm1 qkv1 rope1",
            id="a dense layer",
        ),
        pytest.param(
            "A0 e G e G e E0", "o_proj0 o_proj0 norm0 router0 router0",
            id="what converts o_proj's input is o_proj's",
        ),
        pytest.param("A0 G g e G g E G K1", "o_proj0 o_proj0 norm0 router0 router0 qkv1",
                     id="stretches of one product, experts without a layer"),
        pytest.param("e e G e K0", "norm0 norm0 qkv0 rope0", id="the first segment"),
        pytest.param("A7 G e G e G e", "o_proj7 norm7 mlp7 mlp7 mlp7 norm",
                     id="the last segment of a dense model: the final norm has no layer"),
        pytest.param("K0 e e A0", "?0 ?0", id="inside one attention: the layer only"),
        pytest.param("A0 e E0", "norm0", id="products that nobody recognised"),
        pytest.param("A0 G x e G e E0", "o_proj0 norm0 router0 router0",
                     id="rows to be left alone do not count"),
        pytest.param("A0 G e | e G e K0", "o_proj0 norm0 norm0 qkv0 rope0",
                     id="a segment ends with its step"),
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


def test_a_qkv_of_several_products() -> None:
    rows = "E0 e G e G e K1"
    assert place(rows, PRODUCTS | {"qkv": 2}) == ["norm1", "qkv1", "norm1", "qkv1", "rope1"]


def test_an_o_proj_of_two_products() -> None:
    rows = "A0 G e G e G e E0"
    wanted = "o_proj0 o_proj0 o_proj0 norm0 router0 router0"
    assert place(rows, PRODUCTS | {"o_proj": 2}) == wanted.split()


def test_layers_follow_each_other() -> None:
    layer = "e G e K{0} A{0} G e G e E{0}"
    text = " ".join(layer.format(number) for number in range(3))
    wanted = "norm{0} qkv{0} rope{0} o_proj{0} norm{0} router{0} router{0}"
    assert place(text) == " ".join(wanted.format(number) for number in range(3)).split()


def test_nothing_to_place() -> None:
    assert place("A0 E0") == []
