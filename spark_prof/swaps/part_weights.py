"""Kernels of slots beside `layer` of what a part of it has packed, where that part failed.

A part is tried when vLLM has laid its weights out anew, so that nothing can be read from them any
more. What the part has packed takes their place: nothing is packed or held twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from spark_prof.errors import SparkProfError
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import PackedExperts
from spark_prof.kernels.pack import PackedLinear
from spark_prof.swaps.build import BuiltReplacement, SwapPoint
from spark_prof.swaps.builders import (
    BUILDERS,
    build_kept,
    kept_experts,
    kept_matrix,
    quantized_matrix,
)
from spark_prof.swaps.guard import GuardedReplacement, logger
from spark_prof.swaps.layer_parts import output_rows
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.live_weights import read_linear, read_router
from spark_prof.swaps.swap_settings import Swap

_SAME_BITS = ("spark_prof", "spark_prof!")

PackedParts = Mapping[int, Replacement]
"""Parts of decoder layers by the `id` of what guards them, which loses them where they fail."""


def packed_parts(places: Sequence[BuiltReplacement]) -> PackedParts:
    """The parts that hold weights of other slots that are named beside `layer`, before a trial."""
    return {
        id(guarded): guarded.replacement
        for place in places
        for side in {side for side, *_ in place.inside}
        if (guarded := place.choices[side]).replacement is not None
    }


def built_of_failed(
    places: Sequence[BuiltReplacement], packed: PackedParts
) -> list[BuiltReplacement]:
    """Replacements for what parts of `layer` that have failed leave to slots beside it.

    Each is still to be tried. Those that cannot be built say why.

    Args:
        places: as they have been tried.
        packed: of the same places before, by `packed_parts`.
    """
    built: dict[tuple[int, int, Swap], GuardedReplacement] = {}
    rebuilt: dict[int, BuiltReplacement] = {}
    for place in places:
        for side, point, swap in place.inside:
            part = place.choices[side]
            if part.live or id(part) not in packed:
                continue
            key = (id(part), id(point), swap)
            if key not in built:
                built[key] = _built(packed[id(part)], place.swaps[side], point, swap)
            new = rebuilt.setdefault(id(point), BuiltReplacement(point))
            new.swaps[side], new.choices[side] = swap, built[key]
    return list(rebuilt.values())


def _built(part: Replacement, of: Swap, point: SwapPoint, swap: Swap) -> GuardedReplacement:
    name = f"{swap.slot}={swap.kernel}"
    guarded = GuardedReplacement(f"{point.name} ({name})", name, None)
    try:
        with torch.no_grad():
            guarded.replacement = of_part(part, of, point, swap)
    except Exception as error:  # a layer that the kernel cannot have keeps vLLM's
        prefix = "" if isinstance(error, SparkProfError) else f"{type(error).__name__}: "
        guarded.fail(f"{prefix}{error}", quiet=True)
    else:
        logger.info("%s: of what slot layer has packed, which gave it up", guarded.label)
    return guarded


def of_part(part: Replacement, of: Swap, point: SwapPoint, swap: Swap) -> Replacement:
    """What a slot beside `layer` runs with the weights that a part of a layer has packed.

    Args:
        part: as the package's own builders make them.
        of: the swap of slot `layer`.
        point: a matrix, the experts or their choice, inside the part.

    Raises:
        KernelError: the part has them in another format or order than the kernel needs.
    """
    if not {of.kernel, swap.kernel} <= {*BUILDERS}:
        raise KernelError(
            "slot layer failed here when vLLM had laid its weights out anew; of those that it has "
            "packed only the package's own kernels can be built"
        )
    insist = swap.kernel == "spark_prof!"
    if point.slot == "router" and swap.kernel in _SAME_BITS:
        # Its matrix, in BF16, is read where vLLM has it.
        choice = point.kind == "choice"
        read = read_router if choice else partial(read_linear, slot=point.slot)
        return build_kept(read(point.name, point.module), insist)
    packed = part.parts[0] if part.parts else None
    if point.kind == "experts" and isinstance(packed, PackedExperts) and swap.kernel in _SAME_BITS:
        router = read_router(point.name, point.module)
        # Behind them lie those of a shared expert, which no logits name.
        return kept_experts(replace(packed, count=router.experts), router, insist)
    if point.slot == "qkv" and isinstance(packed, PackedLinear):
        if packed.rows != output_rows(point.module):
            raise KernelError("slot layer failed here, and has packed several matrices as one")
        if part.bits == "kept" and swap.kernel in _SAME_BITS:
            return kept_matrix(packed, swap.slot, insist)
        if part.bits == "changed" and swap.kernel == of.kernel:
            return quantized_matrix(packed, swap.slot, part.line)
    raise KernelError(
        f"slot layer failed here, and has packed the weights otherwise than {swap.slot}="
        f"{swap.kernel} reads them"
    )
