"""How many tokens each expert of a mixture gets in one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["rows_per_expert"]

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_MOST = 1 << 20
"""No model has more experts."""
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")


def rows_per_expert(config: Mapping[str, Any], tokens: float) -> float | None:
    """Mean tokens of an expert that gets any, where each token finds all experts equally likely.

    Exact for one token: each of its experts gets that one.

    Args:
        config: the model's configuration as Hugging Face writes it.
        tokens: tokens of the step, at least 1 counted.

    Returns:
        None where the configuration does not tell the experts.
    """
    among, chosen = _number(config, _EXPERTS), _number(config, _CHOSEN)
    if not among or not chosen or chosen > among:
        return None
    tokens = max(tokens, 1.0)
    hit: float = among * (1 - (1 - chosen / among) ** tokens)
    return tokens * chosen / hit


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    inner = config.get("text_config")
    for source in (config, inner if isinstance(inner, dict) else {}):
        for name in names:
            value = source.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
                return value
    return 0
