"""Which components a swap changes."""

from __future__ import annotations

from spark_prof.analyzers.comparing.swap_attribution import Swapped
from spark_prof.analyzers.comparing.swap_proof import (
    COMPONENTS_OF_SLOT,
    component_of_swap,
    differing,
    touched_components,
)
from spark_prof.swaps.spec import SLOTS
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row


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
