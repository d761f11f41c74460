"""Asks a live engine what became of its swaps, and how far each is from vLLM's own kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_prof.ab.engine import Engine
from spark_prof.ab.gate import LayerError, judge_layer
from spark_prof.ab.messages import DescribeSwaps, Swaps
from spark_prof.ab.swapped import RankSwaps, read_swaps


def describe(engine: Engine) -> tuple[tuple[RankSwaps, ...], tuple[LayerError, ...]]:
    """What became of the swaps, a rank each, and each live one that was tried by itself.

    Raises:
        CommandError: the engine failed, or answered something else.
    """
    answer = engine.ask(DescribeSwaps(), Swaps, "telling what is swapped")
    ranks = tuple(read_swaps(_without_nulls(rank)) for rank in answer.ranks)
    return ranks, _errors(answer.ranks, ranks)


def _errors(answers: list[dict[str, Any]], ranks: tuple[RankSwaps, ...]) -> tuple[LayerError, ...]:
    """Of each module and kernel once, also where both sides have it."""
    found: dict[tuple[int, str, str, str], LayerError] = {}
    for answer, rank in zip(answers, ranks, strict=True):
        for row, swap in zip(answer.get("swaps") or (), rank.swaps, strict=True):
            error = row.get("layer_error")
            if not swap.live or not isinstance(error, Mapping):
                continue
            relative = error.get("relative_l2")
            name = swap.name if len(ranks) == 1 else f"{swap.name} of rank {rank.rank}"
            found[rank.rank, swap.slot, swap.name, swap.kernel] = judge_layer(
                name,
                swap.slot,
                "changed" if swap.bits == "changed" else "kept",
                float(relative) if isinstance(relative, int | float) else None,
                f"row {error['row']} of {error['tokens']}" if error.get("tokens") else "",
                beyond=error.get("beyond") is True,
            )
    return tuple(found.values())


def _without_nulls(rank: dict[str, Any]) -> dict[str, Any]:
    """The answer without what is null in its rows: nothing was built there."""
    rows = rank.get("swaps")
    if not isinstance(rows, list):
        return rank
    kept = [
        {key: value for key, value in row.items() if value is not None}
        if isinstance(row, dict)
        else row
        for row in rows
    ]
    return {**rank, "swaps": kept}
