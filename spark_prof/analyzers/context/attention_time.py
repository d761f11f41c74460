"""What attention, or the state, of each kind of layer takes in each step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from spark_prof.analyzers.context.layer_groups import STATES, ContextLayers
from spark_prof.analyzers.lookup import copies_in, positions
from spark_prof.arrays import Floats
from spark_prof.rules.components import DRAFTER, part_of

_NEARLY_ALL = 0.95  # of attention's time, whose layers must be known
_STATE = "ssm"
_PREPARED = "step.prepare"  # attention's metadata, outside of layers, whatever the context is


def attention_us(
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    groups: Sequence[ContextLayers],
    components: Collection[str],
) -> list[Floats] | None:
    """The us of each group's layers in each of these steps; None where layers are not known.

    Args:
        components: of kernels that count, of layers with a KV cache.
    """
    component = placed["component"].astype(str).to_numpy()
    attends, states = np.isin(component, list(components)), component == _STATE
    step = positions(steps.index.to_numpy(), placed["step"].to_numpy())
    roles = placed["role"].astype("category")
    outside = [part_of(str(role)) == DRAFTER or role == _PREPARED for role in roles.cat.categories]
    relevant = (attends | states) & (step >= 0) & ~copies_in(placed)
    relevant &= ~np.array([*outside, False])[roles.cat.codes.to_numpy()]
    layer = placed["layer"].to_numpy(np.int64)
    us = (placed["end_ns"] - placed["start_ns"]).to_numpy(np.float64) / 1e3
    in_layers = relevant & (layer >= 0)
    if not in_layers.any() or us[in_layers].sum() < _NEARLY_ALL * us[relevant].sum():
        return None
    sums = []
    for group in groups:
        kind = states if group.kind in STATES else attends
        rows = in_layers & np.isin(layer, group.layers) & kind
        sums.append(np.bincount(step[rows], us[rows], minlength=len(steps)).astype(np.float64))
    return sums
