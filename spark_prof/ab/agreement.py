"""Asks a live engine whether its sides agree, position by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from spark_prof.ab.engine import Engine
from spark_prof.ab.gate import Position
from spark_prof.ab.messages import Batch, Compare, Compared, Done
from spark_prof.errors import CommandError


def keep_logits(engine: Engine, side: str, batch: Batch, path: Path) -> None:
    """Generates on a side and keeps the logits of every sampled position in a file."""
    doing = f"keeping the logits of side {side}"
    engine.ask(Compare(side, batch, str(path), keep=True), Done, doing)


def compare_logits(
    engine: Engine, side: str, batch: Batch, path: Path, *, disturbed: bool = False
) -> tuple[Position, ...]:
    """Generates the same tokens on a side and compares its logits with those in the file.

    Args:
        engine: that has the side.
        side: which.
        batch: as it was kept.
        path: the file.
        disturbed: with embeddings that are off by a rounding.
    """
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
