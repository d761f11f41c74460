"""The same model with some of its weights in another format: what each choice would bring."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_prof.analyzers.ceilings.formats import BYTES
from spark_prof.analyzers.ceilings.model import Weights, WeightsOfModel

_MIXERS = frozenset({"qkv", "o_proj", "ssm", "attention"})
_HEAD = frozenset({"lm_head"})
_DENSE = _MIXERS | _HEAD | {"mlp", "shared_experts"}
_ALL = _DENSE | {"experts"}


@dataclass(frozen=True)
class Change:
    """Matrices of some components in another format.

    The router stays as it is: it decides, it is small, and vLLM does not quantize it.

    Attributes:
        widens: whether narrower weights are widened too; else only wider ones change.
    """

    id: str
    title: str
    components: frozenset[str]
    format: str
    widens: bool = False


CHANGES: tuple[Change, ...] = (
    Change("attention-head-fp8", "attention and lm_head FP8", _MIXERS | _HEAD, "fp8"),
    Change("attention-head-mxfp4", "attention and lm_head MXFP4", _MIXERS | _HEAD, "mxfp4"),
    Change("attention-head-nvfp4", "attention and lm_head NVFP4", _MIXERS | _HEAD, "nvfp4"),
    Change("dense-mxfp4", "all but the experts MXFP4", _DENSE, "mxfp4"),
    Change("but-head-nvfp4", "all but lm_head NVFP4", _ALL - _HEAD, "nvfp4"),
    Change("all-nvfp4", "all NVFP4", _ALL, "nvfp4"),
    Change("all-bf16", "all BF16", _ALL, "bf16", widens=True),
)
"""What can be chosen, in the order in which it is shown."""


def changed(model: WeightsOfModel, change: Change) -> WeightsOfModel | None:
    """The model with that change, None where it changes nothing."""
    weights = tuple(_converted(weights, change) for weights in model.weights)
    return replace(model, weights=weights) if weights != model.weights else None


def _converted(weights: Weights, change: Change) -> Weights:
    """The weights in the change's format, where it is for them."""
    if weights.role != "decoder" or not weights.matrix:
        return weights
    if weights.component not in change.components or weights.format == change.format:
        return weights
    size = weights.parameters * BYTES[change.format]
    # A format that is as narrow stays: MXFP4 is not made of NVFP4 to save 6 %.
    if not change.widens and size > 0.9 * weights.bytes:
        return weights
    return replace(weights, format=change.format, bytes=size)
