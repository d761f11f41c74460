"""Which components a swap changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from spark_prof.analyzers.swap_gain.model import Swapped
from spark_prof.rules.components import component_of

COMPONENTS_OF_SLOT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qkv": ("qkv",),
        "o": ("o_proj",),
        "mlp": ("mlp",),
        # Experts that are given the router's logits choose themselves: its top-k goes as well.
        "moe": ("experts", "router"),
        "router": ("router",),
        "norm": ("norm",),
        "lm_head": ("lm_head",),
    }
)
"""For each slot the component that its kernels count to, then others that they change."""

_BY_PATH = ("qkv", "o", "mlp")
"""Slots of linear layers, which belong to other components in some models: ssm, shared_experts."""


def component_of_swap(swap: Swapped) -> str:
    """The component that the kernels of a swapped module count to."""
    by_path = component_of(swap.name, "") if swap.slot in _BY_PATH else ""
    return by_path or COMPONENTS_OF_SLOT[swap.slot][0]


def differing(swaps: Iterable[Swapped]) -> tuple[Swapped, ...]:
    """The swaps of one side that the other one does not have as well."""
    swaps = tuple(swap for swap in swaps if swap.side in ("a", "b"))
    sides: dict[tuple[str, str, str], set[str]] = {}
    for swap in swaps:
        sides.setdefault((swap.slot, swap.name, swap.kernel), set()).add(swap.side)
    return tuple(s for s in swaps if len(sides[s.slot, s.name, s.kernel]) == 1)


def touched_components(swaps: Iterable[Swapped]) -> frozenset[str]:
    """The components that differ between the sides because of their swaps."""
    found: set[str] = set()
    for swap in differing(swaps):
        found |= {component_of_swap(swap), *COMPONENTS_OF_SLOT[swap.slot][1:]}
    return frozenset(found)
