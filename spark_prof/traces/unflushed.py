"""What a recording that died had recorded but not flushed: gone, and worth a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_prof.traces.piece_files import json_files
from spark_prof.traces.pieces import progress_name

__all__ = ["unflushed"]


def unflushed(
    pieces: Path, facts: Mapping[str, Mapping[str, Any]], kept: Mapping[str, int]
) -> list[str]:
    """Lines about steps and ranks that are missing.

    Args:
        pieces: the folder of pieces.
        facts: what each process said about itself.
        kept: how many steps of each rank were flushed.
    """
    lines = []
    ranks = [name for name in facts if name.startswith("rank")]
    for name in ranks:
        # Written twice a second: the process may have got further before it died.
        recorded = next(json_files(pieces, progress_name(name)), {}).get("recorded", 0)
        missing = recorded - kept.get(name, 0) if isinstance(recorded, int) else 0
        if missing > 0:
            lines.append(f"{name}: at least {missing} recorded steps were not flushed")
        elif not kept.get(name):
            lines.append(f"{name}: no step was flushed")
    expected = max((_ranks(facts[name].get("parallel")) for name in ranks), default=1)
    if len(ranks) < expected:
        lines.append(f"{expected - len(ranks)} of {expected} ranks left nothing here")
    return lines


def _ranks(parallel: object) -> int:
    """How many ranks a run has, by the sizes of its parallel dimensions."""
    product = 1
    for size in parallel.values() if isinstance(parallel, dict) else ():
        product *= size if isinstance(size, int) and 0 < size < 1 << 20 else 1
    return product
