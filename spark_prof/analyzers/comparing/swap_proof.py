"""Whether each replacement ran in the layers that it claims, from the kernels that ran there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.comparing.swap_attribution import LayerProof, RanAnswer, SwapOnSide
from spark_prof.rules.components import component_of, layer_of

COMPONENTS_OF_SLOT: Mapping[str, tuple[str, ...]] = {
    "layer": ("experts", "norm", "qkv", "rope", "kv_write", "attention", "router"),
    "qkv": ("qkv",),
    "o": ("o_proj",),
    "mlp": ("mlp",),
    # Experts that are given the router's logits choose themselves: its top-k goes as well.
    "moe": ("experts", "router"),
    "router": ("router",),
    "norm": ("norm",),
    "lm_head": ("lm_head",),
}
"""For each slot the component that its kernels count to, then others that they change."""

_BY_PATH = ("layer", "qkv", "o", "mlp")
"""Slots of linear layers, which belong to other components in some models: ssm, shared_experts; and
a decoder layer's parts, each by the path of its module."""


def component_of_swap(swap: SwapOnSide) -> str:
    """The component that the kernels of a swapped module count to."""
    by_path = component_of(swap.name, "") if swap.slot in _BY_PATH else ""
    return by_path or COMPONENTS_OF_SLOT[swap.slot][0]


def differing(swaps: Iterable[SwapOnSide]) -> tuple[SwapOnSide, ...]:
    """The swaps of one side that the other one does not have as well."""
    swaps = tuple(swap for swap in swaps if swap.side in ("a", "b"))
    sides: dict[tuple[str, str, str], set[str]] = {}
    for swap in swaps:
        sides.setdefault((swap.slot, swap.name, swap.kernel), set()).add(swap.side)
    return tuple(s for s in swaps if len(sides[s.slot, s.name, s.kernel]) == 1)


def touched_components(swaps: Iterable[SwapOnSide]) -> frozenset[str]:
    """The components that differ between the sides because of their swaps."""
    components: set[str] = set()
    for swap in differing(swaps):
        components |= {component_of_swap(swap), *COMPONENTS_OF_SLOT[swap.slot][1:]}
    return frozenset(components)


OWN_KERNELS = ("spark_prof", "spark_prof!", "mxfp4", "fp8")
"""Swaps that run the package's own kernels, whose names are not vLLM's."""

_NO_PRODUCTS = ("router", "norm")
"""Slots whose kernels are no matrix products; the router's gate is one, and stays."""

_HALF_A_CALL = 0.5


class _SwappedLocation(NamedTuple):
    """Where swapped modules of a side are to be found; the layer is -1 outside of the layers."""

    slot: str
    layer: int
    component: str


def proofs_of(swaps: Iterable[SwapOnSide], table: pd.DataFrame) -> tuple[LayerProof, ...]:
    """One proof each side, slot and layer, of the swaps that tell the sides apart."""
    places: Counter[tuple[str, _SwappedLocation]] = Counter()
    foreign: set[_SwappedLocation] = set()
    for swap in differing(swaps):
        place = _SwappedLocation(swap.slot, layer_of(swap.name), component_of_swap(swap))
        places[swap.side, place] += 1
        if swap.kernel not in OWN_KERNELS:
            foreign.add(place)
    both = {place for side, place in places if side == "a" and ("b", place) in places}
    proof_by_place = {key: _proof(*key, modules, table) for key, modules in places.items()}
    proven = {(p.side, p.slot, p.component) for p in proof_by_place.values() if p.ran == "ran"}
    proofs = []
    for (_, place), proof in proof_by_place.items():
        # Somebody's own kernel may run operators of PyTorch, as vLLM does: only a layer in which it
        # looks different tells something of the others.
        untold = (proof.side, proof.slot, proof.component) not in proven
        if untold and place in foreign | both and (proof.new or proof.left):
            why = f"both sides run kernels of the same names in {proof.component}"
            proof = replace(proof, ran="not told", why=why)
        proofs.append(proof)
    return tuple(sorted(proofs, key=lambda p: (p.side, p.slot, -1 if p.layer is None else p.layer)))


def _proof(side: str, place: _SwappedLocation, modules: int, table: pd.DataFrame) -> LayerProof:
    rows = table[(table["layer"] == place.layer) & (table["component"] == place.component)]
    other = "a" if side == "b" else "b"
    swapped_calls, other_calls = rows[f"kernels_{side}"], rows[f"kernels_{other}"]
    new = tuple(rows.loc[(swapped_calls > 0) & (other_calls == 0), "name"].astype(str))
    replaced = _replaced(place.slot, rows[other_calls > 0], f"{other}_us")
    dropped = (other_calls - swapped_calls).clip(lower=0)[replaced.index].sum()
    expected = other_calls[replaced.index].sum() if place.slot == "moe" else modules
    staying = replaced[swapped_calls[replaced.index] > 0].astype(str)
    left = () if dropped >= expected - _HALF_A_CALL else tuple(staying)
    where = f"layer {place.layer}" if place.layer >= 0 else "the part outside of the layers"
    verdict: RanAnswer = "did not run"
    why = f"side {side} ran no other kernels of {place.component} than side {other} in {where}"
    if not (swapped_calls > 0).any():
        why = f"side {side} ran no kernel of {place.component} in {where}"
    elif new and not left:
        verdict, why = "ran", ""
    elif new:
        why = f"{left[0]:.80} of side {other} still runs in {where} on side {side}"
    return LayerProof(
        side=side,
        slot=place.slot,
        layer=place.layer if place.layer >= 0 else None,
        component=place.component,
        modules=modules,
        ran=verdict,
        new=new,
        left=left,
        why=why,
    )


def _replaced(slot: str, other_rows: pd.DataFrame, us: str) -> pd.Series:
    """The names of the other side's kernels of which a replacement takes the place of some.

    Matrix products; where no name is known as one, what takes the most time. Smaller ones beside
    them, such as casts, may stay.
    """
    product = np.array([is_gemm(str(name)) for name in other_rows["name"]], bool)
    names: pd.Series = other_rows["name"]
    if slot in _NO_PRODUCTS:
        return names[~product]
    return names[product] if product.any() else names[other_rows[us].nlargest(1).index]
