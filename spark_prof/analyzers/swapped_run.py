"""Which slots of a recorded model ran kernels of this package, by facts or by kernels' names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.rules.kernel_names import OWN_KERNELS
from spark_prof.rules.tune_candidates import IN_LAYER, slot_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.swapped import SWAPS, SwappedSlot, swapped_places, swapped_slots

EXTENSION = "spark_prof."
"""What the name of this package's extension of vLLM's worker begins with."""


def swaps_of(
    bundle: Bundle, rank: int, kernels: Callable[[], Sequence[KernelRow]]
) -> tuple[SwappedSlot, ...]:
    """The swapped slots of a rank; none where vLLM's own kernels ran.

    [slot.kernel for slot in swaps_of(bundle, 0, lambda: kernels)] == ["mxfp4", "spark_prof"]

    Args:
        kernels: gives those that ran, of recordings of `spark-prof ab` that tell no swaps.
    """
    recorded_slots = swapped_slots(swapped_places(bundle, rank))
    facts = bundle.facts(rank)
    if recorded_slots or SWAPS in facts:
        return recorded_slots
    parallel = mapping_in(mapping_in(facts, "engine_config"), "parallel_config")
    if not str(parallel.get("worker_extension_cls") or "").startswith(EXTENSION):
        return ()
    swapped = [row.component for row in kernels() if re.search(OWN_KERNELS, row.name)]
    slots = dict.fromkeys(filter(None, map(slot_of, swapped)))
    return tuple(SwappedSlot(slot, "", 0) for slot in slots)


def runs_already(swaps: Sequence[SwappedSlot], component: str) -> bool:
    """Whether a component's kernels are of this package already."""
    slots = {swap.slot for swap in swaps}
    return slot_of(component) in slots - {"layer"} or any(
        _is_in(component, swap.components) for swap in swaps if swap.slot == "layer"
    )


_PART_OF = {"rope": "attention", "kv_write": "attention", "router": "experts"}
"""The component of the part of a decoder layer that computes another one, too."""


def _is_in(component: str, parts: Sequence[str]) -> bool:
    """Whether parts of decoder layers compute a component: each has a norm but attention."""
    if not parts:
        return component in IN_LAYER
    return component == "norm" or _PART_OF.get(component, component) in parts


def weights_unknown(swaps: Sequence[SwappedSlot], component: str) -> bool:
    """Whether a component runs a kernel of this package that may have quantized its weights."""
    return any(not swap.kernel for swap in swaps if swap.slot == slot_of(component))
