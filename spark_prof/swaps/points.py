"""The places in a live vLLM model where a kernel can be swapped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from spark_prof.analyzers.components import component_of

SLOT_OF_COMPONENT = {
    "qkv": "qkv",
    "o_proj": "o",
    "mlp": "mlp",
    "shared_experts": "mlp",
    "lm_head": "lm_head",
    "router": "router",
}
"""The slot of a matrix by the component that it works for."""

_ENCODERS = re.compile(r"(^|\.)(visual|vision|audio|speech|image|mm_|multi_modal)[^.]*\.")
"""Paths of what computes pictures and sounds: never a few tokens at a time."""

Kind = Literal["matrix", "experts", "choice", "norm"]
"""What computes there: a matrix, a mixture of experts, the choice of experts, or a norm."""


@dataclass(frozen=True, eq=False)
class SwapPoint:
    """A module and the slot that it fills.

    A mixture of experts fills two: moe, and router by its choice. The router's matrix fills router
    as well.

    Attributes:
        slot: a word of `spec.SLOTS`.
        name: the module's path in the model.
    """

    slot: str
    name: str
    module: Any
    kind: Kind


def find_points(model: Any) -> Iterator[SwapPoint]:
    """All places of a model's decoder, a torch.nn.Module, in the order of its modules."""
    for name, module in model.named_modules():
        if _ENCODERS.search(name):
            continue
        if hasattr(module, "routed_experts") and hasattr(module, "router"):
            # The router first: experts that route by themselves then wrap it, not it them.
            yield SwapPoint("router", name, module, "choice")
            yield SwapPoint("moe", name, module, "experts")
        elif _is_norm(module):
            yield SwapPoint("norm", name, module, "norm")
        elif callable(getattr(getattr(module, "quant_method", None), "apply", None)):
            slot = SLOT_OF_COMPONENT.get(component_of(name, type(module).__name__))
            if slot is not None and ".experts." not in name:
                yield SwapPoint(slot, name, module, "matrix")


def _is_norm(module: Any) -> bool:
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "_forward_method")
