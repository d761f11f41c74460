"""Asks a live engine whether its sides agree: position by position, and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.ab.accuracy_gate import Bits, Depth, LayerError, Position, judge, judge_layer
from spark_prof.ab.engine_process import Engine
from spark_prof.ab.measuring import Shape
from spark_prof.ab.messages import Batch, Compare, Compared, DescribeSwaps, Done, Facts, Swaps
from spark_prof.ab.result import Gate, RankSwaps, read_swaps
from spark_prof.ab.setting import Setting
from spark_prof.errors import CommandError


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


_POSITIONS = 256
"""At least, so that what rarely happens, as another choice of experts, is met by the floor too."""
_FEWEST_TOKENS = 32


def gate_batch(setting: Setting, shape: Shape, facts: Facts) -> Batch:
    """The prompts of the gate, and how many tokens each request generates."""
    tokens = setting.options.gate_tokens
    if tokens is None:
        wanted = max(_FEWEST_TOKENS, -(-_POSITIONS // shape.requests))
        tokens = max(1, min(wanted, facts.longest - shape.prompt_tokens - 1))
    return Batch(shape.requests, shape.prompt_tokens, tokens)


def bits_of(setting: Setting) -> Bits:
    """Whether both sides compute with the same bits of the weights.

    What an option or a variable of vLLM's changes is not known: it may be a kernel that rounds
    activations, so such sides are held to what is said of sides that quantize.
    """
    a, b = setting.a, setting.b
    if a.options != b.options or dict(a.environment) != dict(b.environment):
        return "changed"
    rows = (swap for rank in setting.keeper.result.swaps for swap in rank.swaps if swap.live)
    return "changed" if any(swap.bits == "changed" for swap in rows) else "kept"


def keep_verdict(
    setting: Setting,
    shape: Shape,
    facts: Facts,
    positions: Sequence[Position],
    floor: Sequence[Position],
    layers: Sequence[LayerError],
) -> bool:
    """Adds the verdict of a batch size to the result; whether it passed."""
    depth = None if facts.layers is None else Depth(facts.layers, facts.routed)
    verdict = judge(positions, bits_of(setting), floor, layers, depth)
    setting.keeper.add(gates=(Gate(shape.requests, verdict),))
    for line in verdict.reasons:
        setting.say(f"gate at batch size {shape.requests}: {line}")
    return verdict.passed


def keep_logits(engine: Engine, side: str, batch: Batch, path: Path) -> None:
    """Generates on a side and keeps the logits of every sampled position in a file."""
    doing = f"keeping the logits of side {side}"
    engine.ask(Compare(side, batch, str(path), keep=True), Done, doing)


def compare_logits(
    engine: Engine, side: str, batch: Batch, path: Path, *, disturbed: bool = False
) -> tuple[Position, ...]:
    """Generates the same tokens on a side and compares its logits with those in the file."""
    doing = f"comparing the logits of side {side}"
    request = Compare(side, batch, str(path), keep=False, disturbed=disturbed)
    answer = engine.ask(request, Compared, doing)
    wanted = batch.requests * batch.tokens
    if len(answer.rows) != wanted:
        raise CommandError(
            f"{len(answer.rows)} of {wanted} positions were compared at batch size "
            f"{batch.requests}; is the KV cache too small for them?"
        )
    return tuple(map(_position, answer.rows))


def _position(row: dict[str, Any]) -> Position:
    # JSON has no NaN and no infinity: they come as null.
    figures = {
        name: float("nan") if row.get(name) is None else row[name]
        for name in ("margin_a", "kl_nats", "worst", "scale")
    }
    try:
        return msgspec.convert({**row, **figures}, Position)
    except msgspec.ValidationError as error:
        raise CommandError(
            f"the engine's comparison is not of this version of spark-prof ({error})"
        ) from error
