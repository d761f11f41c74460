"""Asks a live engine whether its sides agree: position by position, and layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.ab.accuracy_gate import (
    ENOUGH_POSITIONS,
    Bits,
    Depth,
    LayerError,
    Position,
    judge,
    judge_layer,
)
from spark_prof.ab.engine_process import Engine
from spark_prof.ab.measuring import MeasuredShape
from spark_prof.ab.messages import Compare, DescribeSwaps, Facts, PromptBatch, RankAnswers
from spark_prof.ab.result import Gate, RankSwaps
from spark_prof.ab.setting import AbRun
from spark_prof.errors import CommandError


def describe(
    engine: Engine, side: str = ""
) -> tuple[tuple[RankSwaps, ...], tuple[LayerError, ...]]:
    """What became of the swaps, a rank each, and each live one that was tried by itself.

    A module and kernel that several sides have is told once. With a side only that one's are
    among the layers.
    """
    answers = engine.ask(DescribeSwaps(), RankAnswers, "telling what is swapped").rows
    ranks = tuple(msgspec.convert(answer, RankSwaps) for answer in answers)
    errors: dict[tuple[int, str, str, str], LayerError] = {}
    for rank in ranks:
        for swap in rank.swaps:
            error = swap.layer_error
            if not swap.live or error is None or side not in ("", swap.side):
                continue
            judged = judge_layer(
                swap.name,
                swap.slot,
                swap.bits or "kept",
                error.relative_l2,
                f"row {error.row} of {error.tokens}" if error.tokens else "",
                beyond=error.beyond,
                rounded=swap.rounded,
            )
            if len(ranks) > 1:
                judged = replace(judged, layer=f"{swap.name} of rank {rank.rank}")
            errors[rank.rank, swap.slot, swap.name, swap.kernel] = judged
    return ranks, tuple(errors.values())


_FEWEST_TOKENS = 32


def gate_batch(tokens: int | None, shape: MeasuredShape, facts: Facts) -> PromptBatch:
    """The prompts of the gate, of which each request generates so many tokens, or enough."""
    if tokens is None:
        enough = max(_FEWEST_TOKENS, -(-ENOUGH_POSITIONS // shape.requests))
        tokens = max(1, min(enough, facts.longest - shape.prompt_tokens - 1))
    return PromptBatch(shape.requests, shape.prompt_tokens, tokens)


def bits_of(setting: AbRun) -> Bits:
    """Whether both sides compute with the same bits of the weights.

    What an option or a variable of vLLM's changes is not known: it may be a kernel that rounds
    activations. Such sides, as where a layer's kernel does, are held as those that quantize.
    """
    a, b = setting.a, setting.b
    if a.options != b.options or dict(a.environment) != dict(b.environment):
        return "changed"
    return bits_of_swaps(setting.keeper.result.swaps)


def bits_of_swaps(ranks: Iterable[RankSwaps]) -> Bits:
    """Whether all that is live computes with the weights' own bits, and vLLM's own layers do."""
    rows = (swap for rank in ranks for swap in rank.swaps if swap.live)
    return "changed" if any(swap.bits == "changed" or swap.rounded for swap in rows) else "kept"


def keep_verdict(
    setting: AbRun,
    shape: MeasuredShape,
    facts: Facts,
    positions: Sequence[Position],
    floor: Sequence[Position],
    layers: Sequence[LayerError],
) -> bool:
    """Adds the verdict of a batch size to the result; whether it passed."""
    depth = None if facts.layers is None else Depth(facts.layers, facts.routed)
    text = setting.options.text is not None
    verdict = judge(positions, bits_of(setting), floor, layers, depth, text=text)
    setting.keeper.add(gates=(Gate(shape.requests, verdict, shape.prompt_tokens),))
    for line in verdict.reasons:
        setting.say(f"gate, {shape.words}: {line}")
    return verdict.passed


def keep_logits(
    engine: Engine,
    side: str,
    batch: PromptBatch,
    path: Path,
    text: Path | None,
    prompts: tuple[str | tuple[int, ...], ...] = (),
) -> None:
    """Generates on a side and keeps the logits of every sampled position in a file."""
    doing = f"keeping the logits of side {side}" if side else "keeping the logits without drafts"
    request = Compare(side, batch, str(path), keep=True, text=_named(text), prompts=prompts)
    engine.ask(request, RankAnswers, doing)


def _named(text: Path | None) -> str:
    return "" if text is None else str(text.absolute())


def compare_logits(
    engine: Engine,
    side: str,
    batch: PromptBatch,
    path: Path,
    text: Path | None,
    prompts: tuple[str | tuple[int, ...], ...] = (),
    *,
    disturbed: bool = False,
) -> tuple[Position, ...]:
    """Generates the same tokens on a side and compares its logits with those in the file."""
    doing = f"comparing the logits of side {side}" if side else "comparing the logits with drafts"
    request = Compare(side, batch, str(path), False, disturbed, _named(text), prompts)
    answer = engine.ask(request, RankAnswers, doing)
    # Drafts may go beyond the last token.
    rows = [row for row in answer.rows if row["step"] < batch.tokens]
    expected = batch.requests * batch.tokens
    if len(rows) != expected:
        raise CommandError(
            f"{len(rows)} of {expected} positions were compared at batch size "
            f"{batch.requests}; is the KV cache too small for them?"
        )
    return tuple(map(_position, rows))


def _position(row: dict[str, Any]) -> Position:
    # JSON has no NaN and no infinity: they come as null.
    figures: dict[str, Any] = {key: nan if value is None else value for key, value in row.items()}
    return Position(**figures)
