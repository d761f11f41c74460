"""Takes a trace of several ranks in one file apart, as SGLang's profile merger writes it.

Other mergers call the processes `rank 3` or `Rank3 1234`.

Format: sglang/srt/utils/profile_merger.py. Every process has its rank in front, such as
`[TP01-DP00] 1234`; correlations of the ranks are not kept apart, and of their base times only the
first one is kept.
"""

from __future__ import annotations

import re

import numpy as np

from spark_prof.traces.readers.kineto_collect import Collected

__all__ = ["MERGED", "by_rank"]

MERGED = "several ranks were merged into it and one base time kept: their clocks may disagree"
"""What such a trace lacks."""

_LABEL = re.compile(
    r"\[((?:TP|DP|PP|EP)\d{1,5}(?:-(?:TP|DP|PP|EP)\d{1,5})*)\] |(?i:\[?rank)[ _:-]?(\d{1,5})(?!\d)"
)


def by_rank(found: Collected) -> list[tuple[int | None, Collected]]:
    """Each rank with its events, in order; nothing for a trace of one process.

    The rank is the number behind TP where that tells the ranks apart, else they are counted.
    """
    labels = [_label(pid) for pid, _ in found.threads]
    distinct = sorted(set(filter(None, labels)), key=_numbers)
    if not distinct:
        return []
    tensor = [dict(_numbers(label)).get("TP", -1) for label in distinct]
    told = min(tensor) >= 0 and len(set(tensor)) == len(tensor)
    of_thread = np.array([distinct.index(label) if label else -1 for label in labels], np.int64)
    return [
        (tensor[number] if told else number, found.taken(of_thread == number))
        for number in range(len(distinct))
    ]


def _label(pid: object) -> str:
    match = _LABEL.match(pid) if isinstance(pid, str) else None
    return match[1] or f"TP{match[2]}" if match else ""


def _numbers(label: str) -> list[tuple[str, int]]:
    """The parts of a label in the order that sorts ranks."""
    parts = [(part[:2], int(part[2:])) for part in label.split("-")]
    return sorted(parts, key=lambda part: ("DP", "EP", "PP", "TP").index(part[0]))
