"""Which layers of a model cost how much per token of context: their kinds, and what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_prof.analyzers.ceilings.ceiling_rows import SequenceState
from spark_prof.analyzers.ceilings.config import Config, architecture_of, layer_kinds
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.roofline.needs import ModelShape, StepLoad, attention, shape_of

READING = ("full", "window", "mla", "sparse")
"""Kinds of layers with a KV cache."""
STATES = ("gdn", "mamba")
"""Kinds of layers that keep a state of one size."""


@dataclass(frozen=True)
class ContextLayers:
    """The layers of one kind."""

    kind: str  # of READING or STATES
    layers: tuple[int, ...]
    window: int = 0  # tokens that one reads at most, 0 for all
    index: SequenceState | None = None  # what chooses those tokens and is read as a whole


def layer_groups(facts: Mapping[str, Any]) -> tuple[ContextLayers, ...]:
    """The kinds of layers of a recorded model; none where its configuration does not tell.

    One of 24 layers every second of which has a window of 128: full and window, 12 layers each.
    """
    read = Config(mapping_in(facts, "model_config"))
    shape, kinds = shape_of(facts), layer_kinds(read)
    latent = [state for state in architecture_of(read).states if state.kind == "latent"]
    layers_by_kind: dict[tuple[str, int], list[int]] = {}
    for layer, kind in enumerate(kinds):
        name = _named(kind, read, latent)
        if name in STATES or (name in READING and shape.kv_elements):
            layers_by_kind.setdefault((name, shape.window(layer)), []).append(layer)
    index = latent[1] if len(latent) > 1 else None
    return tuple(
        ContextLayers(kind, tuple(layers), window, index if kind == "sparse" else None)
        for (kind, window), layers in layers_by_kind.items()
    )


def _named(kind: str, read: Config, latent: Sequence[SequenceState]) -> str:
    if kind in ("full", "window") and latent:
        return "sparse" if latent[0].window else "mla"
    if kind == "linear":
        return "gdn" if read.delta_values else "mamba"
    return kind


def read_bytes(group: ContextLayers, load: StepLoad, shape: ModelShape) -> float:
    """What all layers of the group read of KV cache and index in such a step, in bytes."""
    if group.kind in STATES:
        return 0.0
    total = sum(attention(layer, load, shape)[0].need.streamed for layer in group.layers)
    if group.index is not None:
        whole = replace(shape, windows=(), kv_elements=group.index.elements, kv_bytes=1)
        total += len(group.layers) * attention(0, load, whole)[0].need.streamed
    return total
