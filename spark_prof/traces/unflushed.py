"""What a recording had recorded but not flushed, or flushed and lost: gone, and worth a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.traces.piece_files import json_files
from spark_prof.traces.pieces import progress_name
from spark_prof.traces.step_counts import StepCounts, read_counts

_WITHOUT_A_WORD = "its process did not say that it ended (killed, crashed or out of memory)"


def unflushed(
    pieces: Path,
    facts: Mapping[str, Mapping[str, Any]],
    kept: Mapping[str, Sequence[npt.NDArray[Any]]],
    ends: Mapping[str, str],
) -> list[str]:
    """Lines about the steps that are missing, by process.

    Args:
        kept: of each process the numbers of the steps in the bundle.
        ends: how processes ended that did not say so themselves.
    """
    counts = read_counts(pieces)
    reported = {path.name.split(".")[0] for path in pieces.glob(progress_name("rank*"))}
    lines = []
    for name in sorted({*facts, *counts, *reported}):
        progress = next(json_files(pieces, progress_name(name)), {})
        numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *kept.get(name, ())]))
        numbers = numbers[numbers >= 0]
        silent = not progress.get("finished") and (progress or name in counts)
        why = ends.get(name, _WITHOUT_A_WORD if silent else "")
        lines += [
            f"{name}: {line}" for line in _lines(name, counts.get(name), progress, numbers, why)
        ]
    return lines


def absent_ranks(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line where ranks of the run left nothing; on several hosts those of the others do not."""
    ranks = [fact for name, fact in facts.items() if name.startswith("rank")]
    expected = max((_ranks(fact.get("parallel")) for fact in ranks), default=1)
    if len(ranks) >= expected:
        return []
    return [f"{expected - len(ranks)} of {expected} ranks left nothing here"]


def _lines(
    name: str,
    counts: StepCounts | None,
    progress: Mapping[str, Any],
    kept: npt.NDArray[Any],
    why: str,
) -> list[str]:
    # What the process said twice a second; after a power cut it may be all that is left.
    reported = progress.get("recorded", 0)
    reported = reported if isinstance(reported, int) and 0 <= reported <= 1 << 40 else 0
    recorded = max(counts.recorded if counts else 0, reported)
    exact = counts is not None and counts.exact and counts.recorded == recorded
    expected = max(recorded, int(kept[-1]) + 1 if len(kept) else 0)
    what = "recorded steps" if name.startswith("rank") else "recorded scheduler iterations"
    missing = expected - len(kept)
    because = f": {why}" if why else ""
    lines = []
    if missing > 0:
        gone = "were not flushed" if not len(kept) or kept[-1] < len(kept) else "are missing"
        if exact or why != _WITHOUT_A_WORD:
            gone += f"{_place(kept, expected)}{because}"
        lines.append(f"{'' if exact else 'at least '}{missing} {what} {gone}")
    elif why and not exact and name.startswith("rank"):
        lines.append(f"how many {what} were not flushed after {expected} is not known{because}")
    if counts is not None and counts.begun > counts.recorded:
        lines.append("1 more step was running when the recording ended, and is not recorded")
    if counts is not None and counts.failed:
        logged = "" if not counts.unlogged else "; why could not be written to its log"
        lines.append(f"its recording failed after {recorded} steps; later ones are missing{logged}")
    elif counts is not None and counts.unlogged:
        lines.append(f"{counts.unlogged} lines of its log could not be written")
    if not (lines or len(kept) or progress.get("finished")) and name.startswith("rank"):
        lines.append(f"no step was flushed{because}")
    return lines


def _place(kept: npt.NDArray[Any], expected: int) -> str:
    """Which steps of how many are missing, where they are in one row."""
    ends = np.concatenate([[-1], kept, [expected]])
    gaps = np.flatnonzero(np.diff(ends) > 1)
    if len(gaps) != 1 or not len(kept):
        return f" (of {expected})"
    return f" ({ends[gaps[0]] + 1} to {ends[gaps[0] + 1] - 1} of {expected})"


def _ranks(parallel: object) -> int:
    """How many ranks a run has, by the sizes of its parallel dimensions."""
    product = 1
    for size in parallel.values() if isinstance(parallel, dict) else ():
        product *= size if isinstance(size, int) and 0 < size < 1 << 20 else 1
    return product
