"""The weights that one decode step has to read, to hold the counters against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

__all__ = ["needed_weights"]

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")
_LOOKED_UP = "embedding"
"""Of this table a step reads a row a token."""


def needed_weights(
    layers: pd.DataFrame, config: Mapping[str, Any], tokens: int
) -> dict[str, tuple[float, str]]:
    """Bytes that one step needs of each component's weights, and which part of them that is.

    Experts are left out where more than one token chooses among them: how many experts are hit is
    then a matter of the router's choice, which nobody recorded.

    Args:
        layers: component and bytes of the `layers` table.
        config: the model's configuration as Hugging Face writes it.
        tokens: tokens of the step.
    """
    sums = layers.groupby("component", observed=True)["bytes"].sum()
    needed = {str(name): (float(size), "") for name, size in sums.items() if name and size}
    needed.pop(_LOOKED_UP, None)
    if "experts" in needed:
        whole, _ = needed.pop("experts")
        among, chosen = _number(config, _EXPERTS), _number(config, _CHOSEN)
        if tokens == 1 and among and chosen:
            needed["experts"] = (whole * chosen / among, f"{chosen} of {among} experts")
    return needed


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    inner = config.get("text_config")
    for source in (config, inner if isinstance(inner, dict) else {}):
        for name in names:
            value = source.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return 0
