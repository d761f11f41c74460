"""A replacement that did not run in one layer is found, whichever slot it is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.ab import sides
from spark_prof.analyzers.comparing.swap_attribution import LayerProof, Swapped
from spark_prof.analyzers.comparing.swap_proof import (
    COMPONENTS_OF_SLOT,
    OWN_KERNELS,
    component_of_swap,
    differing,
    touched_components,
)
from spark_prof.analyzers.components import layer_of
from spark_prof.swaps.spec import SLOTS
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


def verdicts(proofs: tuple[LayerProof, ...]) -> list[tuple[int | None, str]]:
    return [(proof.layer, proof.ran) for proof in proofs]


RAN = [(number, "ran") for number in range(LAYERS)]


@pytest.mark.parametrize("missing", range(LAYERS))
def test_experts_that_are_missing_in_one_layer(tmp_path: Path, missing: int) -> None:
    layers = [number for number in range(LAYERS) if number != missing]
    found = attribute(tmp_path, stock(), with_experts(stock(), layers))
    assert not found.ran_everywhere
    wanted = [(n, "did not run" if n == missing else "ran") for n in range(LAYERS)]
    assert verdicts(found.proofs) == wanted
    bad = found.proofs[missing]
    assert (bad.new, bad.left) == ((), (MOE, MOE + " down"))
    assert f"no other kernels of experts than side a in layer {missing}" in bad.why
    assert found.proofs[(missing + 1) % LAYERS].new == ("down", "gate_up")


@pytest.mark.parametrize("swapped_side", ["a", "b"])
def test_either_side_may_be_the_swapped_one(tmp_path: Path, swapped_side: str) -> None:
    rows = [stock(), with_experts(stock())]
    if swapped_side == "a":
        rows.reverse()
    experts = swaps("moe", "model.layers.{}.mlp.experts", swapped_side)
    assert verdicts(attribute(tmp_path, *rows, experts).proofs) == RAN


def test_half_of_the_experts_is_not_enough(tmp_path: Path) -> None:
    """A new kernel beside one of the old products, which should have gone as well."""
    b = [Ran(r.module, "gate_up", r.ns) if r.name == MOE else r for r in stock()]
    found = attribute(tmp_path, stock(), b)
    assert verdicts(found.proofs) == [(n, "did not run") for n in range(LAYERS)]
    assert found.proofs[0].left == (MOE + " down",)
    assert "still runs in layer 0 on side b" in found.proofs[0].why


@each_row(
    ("slot", "path", "part", "name"),
    [
        ("qkv", "model.layers.{}.self_attn.qkv_proj", "qkv_proj", "dense"),
        ("o", "model.layers.{}.self_attn.o_proj", "o_proj", "dense"),
        ("norm", "model.layers.{}.input_layernorm", "input_layernorm", "my_norm"),
        ("router", "model.layers.{}.mlp.experts", "select_experts", "route"),
    ],
)
def test_a_slot_of_every_layer(tmp_path: Path, slot: str, path: str, part: str, name: str) -> None:
    found = attribute(tmp_path, stock(), changed(stock(), part, name=name), swaps(slot, path))
    assert verdicts(found.proofs) == RAN
    assert {proof.new for proof in found.proofs} == {(name,)}
    stays = attribute(tmp_path / "stays", stock(), stock(), swaps(slot, path))
    assert verdicts(stays.proofs) == [(n, "did not run") for n in range(LAYERS)]


def test_outside_of_the_layers(tmp_path: Path) -> None:
    lm_head = [Swapped("b", "lm_head", "lm_head", "mxfp4")]
    b = changed(stock(), "lm_head", name="dense")
    assert verdicts(attribute(tmp_path, stock(), b, lm_head).proofs) == [(None, "ran")]


def test_one_of_two_norms(tmp_path: Path) -> None:
    """The other norm of a layer is nobody's business."""
    a = [
        row
        for one in stock()
        for row in (one, Ran(one.module.replace("o_proj", "q_norm"), NORM, 900))
        if row is one or "q_norm" in row.module
    ]
    b = changed(a, "input_layernorm", name="my_norm")
    norms = swaps("norm", "model.layers.{}.input_layernorm")
    assert verdicts(attribute(tmp_path, a, b, norms).proofs) == RAN
    both = norms + swaps("norm", "model.layers.{}.self_attn.q_norm")
    found = attribute(tmp_path / "both", a, b, both)
    assert verdicts(found.proofs) == [(n, "did not run") for n in range(LAYERS)]
    assert {proof.modules for proof in found.proofs} == {2}


def test_two_matrices_of_a_layer(tmp_path: Path) -> None:
    """Of gate_up and down of layer 1 only the first was replaced."""
    paths = ("model.layers.{}.mlp.gate_up_proj", "model.layers.{}.mlp.down_proj")
    a = [Ran(path.format(number), GEMM, 9_000) for number in range(LAYERS) for path in paths]
    b = [row if "layers.1.mlp.down" in row.module else Ran(row.module, "dense", 5_000) for row in a]
    both = [swap for path in paths for swap in swaps("mlp", path)]
    found = attribute(tmp_path, a, b, both)
    assert verdicts(found.proofs) == [(0, "ran"), (1, "did not run"), (2, "ran")]
    without = [swap for swap in both if "layers.1.mlp.down" not in swap.name]
    assert verdicts(attribute(tmp_path / "w", a, b, without).proofs) == RAN


def test_two_kernels_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    """Both sides run the project's dense kernel, on weights of different formats."""
    a, b = (changed(stock(), "lm_head", name="dense", ns=ns) for ns in (9_000, 5_000))
    pair = [Swapped(s, "lm_head", "lm_head", k) for s, k in (("a", "fp8"), ("b", "mxfp4"))]
    found = attribute(tmp_path, a, b, pair)
    assert verdicts(found.proofs) == [(None, "not told")] * 2
    assert not found.ran_everywhere
    assert "kernels of the same names" in found.proofs[0].why


def test_somebodys_own_kernel_may_have_the_name_of_vllms(tmp_path: Path) -> None:
    """A norm of PyTorch's operators runs what vLLM's own one does on a CPU."""
    b = changed(stock(), "input_layernorm", ns=1_000)
    own = swaps("norm", "model.layers.{}.input_layernorm", kernel_name="mine.py:norm")
    found = attribute(tmp_path, stock(), b, own)
    assert verdicts(found.proofs) == [(n, "not told") for n in range(LAYERS)]
    b = changed(stock(), "input_layernorm", name="my_norm")
    assert verdicts(attribute(tmp_path / "named", stock(), b, own).proofs) == RAN
    b = changed(stock(), "layers.1.input_layernorm", name="my_norm")
    found = attribute(tmp_path / "once", stock(), b, own)
    assert verdicts(found.proofs) == [(0, "did not run"), (1, "ran"), (2, "did not run")]


def test_somebodys_own_product_may_call_vllms(tmp_path: Path) -> None:
    """It runs the same product between operators of its own."""
    b = [
        one
        for row in stock()
        for one in (Ran(row.module, "aten::reshape", 300), row)
        if one is row or "o_proj" in row.module
    ]
    own = swaps("o", "model.layers.{}.self_attn.o_proj", kernel_name="mine.py:linear")
    found = attribute(tmp_path, stock(), b, own)
    assert verdicts(found.proofs) == [(n, "not told") for n in range(LAYERS)]
    assert {(proof.new, proof.left) for proof in found.proofs} == {(("aten::reshape",), (GEMM,))}


def test_the_packages_kernels_are_known() -> None:
    assert OWN_KERNELS == sides.OWN_KERNELS


def test_what_both_sides_have_needs_no_proof(tmp_path: Path) -> None:
    rows = with_experts(stock())
    same = [*EXPERTS, *swaps("moe", "model.layers.{}.mlp.experts", "a")]
    found = attribute(tmp_path, rows, rows, same)
    assert found.proofs == ()
    assert not any(row.touched for row in found.components)


def test_a_layer_in_which_nothing_was_seen(tmp_path: Path) -> None:
    swap = Swapped("b", "moe", "model.layers.77.mlp.experts", "spark_prof")
    found = attribute(tmp_path, stock(), with_experts(stock()), [swap])
    assert verdicts(found.proofs) == [(77, "did not run")]
    assert "ran no kernel of experts in layer 77" in found.proofs[0].why


def test_a_cast_may_stay_beside_a_new_product(tmp_path: Path) -> None:
    def cast(rows: list[Ran]) -> list[Ran]:
        return [
            one
            for row in rows
            for one in (row, Ran(row.module, "direct_copy_kernel", 1_000))
            if one is row or (layer_of(row.module) >= 0 and "o_proj" in row.module)
        ]

    a, b = cast(stock()), cast(changed(stock(), "o_proj", name="dense"))
    found = attribute(tmp_path, a, b, swaps("o", "model.layers.{}.self_attn.o_proj"))
    assert verdicts(found.proofs) == RAN


def test_every_slot_has_its_components() -> None:
    assert set(COMPONENTS_OF_SLOT) == set(SLOTS)
    assert {name for row in COMPONENTS_OF_SLOT.values() for name in row} <= set(COMPONENTS)


@each_row(
    ("slot", "path", "component", "touched"),
    [
        ("qkv", "model.layers.3.self_attn.qkv_proj", "qkv", {"qkv"}),
        ("qkv", "model.layers.3.linear_attn.in_proj_qkvz", "ssm", {"ssm"}),
        ("qkv", "something.of.nobody", "qkv", {"qkv"}),
        ("o", "model.layers.3.attn.o_proj", "o_proj", {"o_proj"}),
        ("mlp", "model.layers.3.mlp.gate_up_proj", "mlp", {"mlp"}),
        ("mlp", "model.layers.3.mlp.shared_experts.down_proj", "shared_experts",
         {"shared_experts"}),
        ("moe", "model.layers.3.mlp.experts", "experts", {"experts", "router"}),
        ("router", "model.layers.3.mlp.experts", "router", {"router"}),
        ("norm", "model.layers.3.self_attn.q_norm", "norm", {"norm"}),
        ("norm", "model.norm", "norm", {"norm"}),
        ("lm_head", "lm_head", "lm_head", {"lm_head"}),
    ],
)  # fmt: skip
def test_a_module_of_the_slot(slot: str, path: str, component: str, touched: set[str]) -> None:
    swap = Swapped("b", slot, path, "spark_prof")
    assert component_of_swap(swap) == component
    assert touched_components([swap]) == touched


def test_what_both_sides_have_does_not_tell_them_apart() -> None:
    same = [Swapped(side, "o", "model.layers.0.attn.o_proj", "mxfp4") for side in ("a", "b")]
    other = Swapped("b", "lm_head", "lm_head", "fp8")
    twin = Swapped("a2", "moe", "model.layers.0.mlp.experts", "spark_prof")
    assert differing([*same, other, twin]) == (other,)
    assert touched_components([*same, other, twin]) == {"lm_head"}


def test_different_kernels_in_one_slot_do() -> None:
    pair = [Swapped(s, "lm_head", "lm_head", k) for s, k in (("a", "fp8"), ("b", "mxfp4"))]
    assert touched_components(pair) == {"lm_head"}
