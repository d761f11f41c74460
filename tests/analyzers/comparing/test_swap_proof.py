"""A replacement that did not run in one layer is found, whichever slot it is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spark_prof.ab import sides
from spark_prof.analyzers.comparing.swap_attribution import SwapOnSide
from spark_prof.analyzers.comparing.swap_proof import (
    COMPONENTS_OF_SLOT,
    OWN_KERNELS,
    component_of_swap,
    differing,
    touched_components,
)
from spark_prof.swaps.swap_settings import SLOTS
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

from .swapped_recordings import (
    EXPERTS,
    GEMM,
    LAYERS,
    MOE,
    NORM,
    Ran,
    attribute,
    changed,
    stock,
    swaps,
    with_experts,
)

Rows = list[Ran]
RAN, NOT, UNTOLD = (
    [(n, word) for n in range(LAYERS)] for word in ("ran", "did not run", "not told")
)
QKV, O_PROJ = "model.layers.{}.self_attn.qkv_proj", "model.layers.{}.self_attn.o_proj"
INPUT_NORM, Q_NORM = "model.layers.{}.input_layernorm", "model.layers.{}.self_attn.q_norm"
MOE_PATH = "model.layers.{}.mlp.experts"
OWN_NORM = swaps("norm", INPUT_NORM, kernel_name="mine.py:norm")


def beside(part: str, added: Callable[[Ran], Ran], *, first: bool = False) -> Rows:
    """A stock step with another kernel beside each that is launched in `part`."""
    return [
        one
        for row in stock()
        for one in ((added(row), row) if first else (row, added(row)))
        if one is row or part in row.module
    ]


TWO_NORMS = beside("o_proj", lambda row: Ran(row.module.replace("o_proj", "q_norm"), NORM, 900))
CAST = beside("self_attn.o_proj", lambda row: Ran(row.module, "direct_copy_kernel", 1_000))
DENSE_AND_CAST = [
    Ran(r.module, "dense", r.ns) if "o_proj" in r.module and r.name == GEMM else r for r in CAST
]
MATRICES = ("model.layers.{}.mlp.gate_up_proj", "model.layers.{}.mlp.down_proj")
PRODUCTS = [Ran(path.format(n), GEMM, 9_000) for n in range(LAYERS) for path in MATRICES]
ONE_LEFT = [
    r if "layers.1.mlp.down" in r.module else Ran(r.module, "dense", 5_000) for r in PRODUCTS
]
BOTH = [swap for path in MATRICES for swap in swaps("mlp", path)]
LM_HEAD = [SwapOnSide("b", "lm_head", "lm_head", "mxfp4")]


@pytest.mark.slow
@each_row(
    ("a", "b", "swapped", "verdicts", "why"),
    [
        *(
            pytest.param(stock(), with_experts(stock(), [n for n in range(LAYERS) if n != missing]),
                         EXPERTS, [NOT[n] if n == missing else RAN[n] for n in range(LAYERS)],
                         f"no other kernels of experts than side a in layer {missing}",
                         id=f"layer {missing} has vLLM's experts")
            for missing in range(LAYERS)
        ),
        pytest.param(with_experts(stock()), stock(), swaps("moe", MOE_PATH, "a"), RAN, "",
                     id="side a is the swapped one"),
        pytest.param(stock(), [Ran(r.module, "gate_up", r.ns) if r.name == MOE else r
                               for r in stock()],
                     EXPERTS, NOT, "still runs in layer 0 on side b", id="half of the experts"),
        *(
            pytest.param(stock(), changed(stock(), part, name=name), swaps(slot, path), RAN, "",
                         id=slot)
            for slot, path, part, name in (
                ("qkv", QKV, "qkv_proj", "dense"),
                ("o", O_PROJ, "o_proj", "dense"),
                ("norm", INPUT_NORM, "input_layernorm", "my_norm"),
                ("router", MOE_PATH, "select_experts", "route"),
            )
        ),
        *(
            pytest.param(stock(), stock(), swaps(slot, path), NOT, "no other kernels", id=slot)
            for slot, path in (("qkv", QKV), ("o", O_PROJ), ("norm", INPUT_NORM))
        ),
        pytest.param(stock(), changed(stock(), "lm_head", name="dense"), LM_HEAD, [(None, "ran")],
                     "", id="outside of the layers"),
        pytest.param(TWO_NORMS, changed(TWO_NORMS, "input_layernorm", name="my_norm"),
                     swaps("norm", INPUT_NORM), RAN, "", id="the other norm is nobody's business"),
        pytest.param(TWO_NORMS, changed(TWO_NORMS, "input_layernorm", name="my_norm"),
                     swaps("norm", INPUT_NORM) + swaps("norm", Q_NORM), NOT, "still runs",
                     id="one of two norms"),
        pytest.param(PRODUCTS, ONE_LEFT, BOTH, [RAN[0], NOT[1], RAN[2]], "still runs in layer 1",
                     id="one of two matrices"),
        pytest.param(PRODUCTS, ONE_LEFT, [s for s in BOTH if "layers.1.mlp.down" not in s.name],
                     RAN, "", id="one matrix was to stay"),
        pytest.param(*(changed(stock(), "lm_head", name="dense", ns=ns) for ns in (9_000, 5_000)),
                     [SwapOnSide("a", "lm_head", "lm_head", "fp8"), *LM_HEAD],
                     [(None, "not told")] * 2, "kernels of the same names",
                     id="the project's dense kernel on two formats"),
        pytest.param(stock(), changed(stock(), "input_layernorm", ns=1_000), OWN_NORM, UNTOLD,
                     "kernels of the same names", id="a norm of PyTorch's operators"),
        pytest.param(stock(), changed(stock(), "input_layernorm", name="my_norm"), OWN_NORM, RAN,
                     "", id="a norm with a name of its own"),
        pytest.param(stock(), changed(stock(), "layers.1.input_layernorm", name="my_norm"),
                     OWN_NORM, [NOT[0], RAN[1], NOT[2]], "no other kernels",
                     id="one layer tells of the others"),
        pytest.param(stock(), beside("o_proj", lambda row: Ran(row.module, "aten::reshape", 300),
                                     first=True),
                     swaps("o", O_PROJ, kernel_name="mine.py:linear"), UNTOLD,
                     "kernels of the same names", id="somebody's own product calls vLLM's"),
        pytest.param(with_experts(stock()), with_experts(stock()),
                     [*EXPERTS, *swaps("moe", MOE_PATH, "a")], [], "", id="what both sides have"),
        pytest.param(stock(), with_experts(stock()),
                     [SwapOnSide("b", "moe", "model.layers.77.mlp.experts", "spark_prof")],
                     [(77, "did not run")], "ran no kernel of experts in layer 77",
                     id="a layer in which nothing was seen"),
        pytest.param(CAST, DENSE_AND_CAST, swaps("o", O_PROJ), RAN, "",
                     id="a cast may stay beside a new product"),
    ],
)  # fmt: skip
def test_the_proof_of(
    tmp_path: Path,
    a: Rows,
    b: Rows,
    swapped: Sequence[SwapOnSide],
    verdicts: list[tuple[int | None, str]],
    why: str,
) -> None:
    found = attribute(tmp_path, a, b, swapped, steps=6)
    assert [(proof.layer, proof.ran) for proof in found.proofs] == verdicts
    assert any(why in proof.why for proof in found.proofs) or not why


def test_a_proof_names_what_is_new_and_what_is_left(tmp_path: Path) -> None:
    ran, absent, _ = attribute(tmp_path, stock(), with_experts(stock(), [0, 2])).proofs
    assert (ran.new, ran.left) == (("down", "gate_up"), ())
    assert (absent.new, absent.left) == ((), (MOE, MOE + " down"))
    b = changed(TWO_NORMS, "input_layernorm", name="my_norm")
    both = swaps("norm", INPUT_NORM) + swaps("norm", Q_NORM)
    assert {p.modules for p in attribute(tmp_path / "both", TWO_NORMS, b, both).proofs} == {2}


def test_every_slot_has_its_components() -> None:
    assert OWN_KERNELS == sides.OWN_KERNELS
    assert set(COMPONENTS_OF_SLOT) == set(SLOTS)
    assert {name for row in COMPONENTS_OF_SLOT.values() for name in row} <= set(COMPONENTS)


@each_row(
    ("slot", "path", "component", "touched"),
    [
        ("qkv", "model.layers.3.self_attn.qkv_proj", "qkv", {"qkv"}),
        ("qkv", "model.layers.3.linear_attn.in_proj_qkvz", "ssm", {"ssm"}),
        ("qkv", "something.of.nobody", "qkv", {"qkv"}),
        ("mlp", "model.layers.3.mlp.shared_experts.down_proj", "shared_experts",
         {"shared_experts"}),
        ("moe", "model.layers.3.mlp.experts", "experts", {"experts", "router"}),
        ("router", "model.layers.3.mlp.experts", "router", {"router"}),
    ],
)  # fmt: skip
def test_a_module_of_the_slot(slot: str, path: str, component: str, touched: set[str]) -> None:
    swap = SwapOnSide("b", slot, path, "spark_prof")
    assert component_of_swap(swap) == component
    assert touched_components([swap]) == touched


def test_what_both_sides_have_does_not_tell_them_apart() -> None:
    same = [SwapOnSide(side, "o", "model.layers.0.attn.o_proj", "mxfp4") for side in ("a", "b")]
    other = SwapOnSide("b", "lm_head", "lm_head", "fp8")
    twin = SwapOnSide("a2", "moe", "model.layers.0.mlp.experts", "spark_prof")
    assert differing([*same, other, twin]) == (other,)
    assert touched_components([*same, other, twin]) == {"lm_head"}
    pair = [SwapOnSide(s, "lm_head", "lm_head", k) for s, k in (("a", "fp8"), ("b", "mxfp4"))]
    assert touched_components(pair) == {"lm_head"}
