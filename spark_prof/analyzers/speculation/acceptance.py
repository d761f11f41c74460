"""How many drafts are accepted: by place in their row, by context and by batch size."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from spark_prof.analyzers.speculation.speculation_rows import DraftGroup, DraftPosition
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import empty_frame

MOST = 64
"""Drafts of a row that are looked at; a row with more is damage."""
_CONTEXTS = (0, 256, 1024, 4096, 16384, 65536, 262144)
_Z = 1.96  # of a normal distribution, 95 % of which is within


def drafts_of(bundle: Bundle, steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of `drafts` that belong to these steps, with their `batch`; of all if none does.

    Args:
        steps: key and decode_requests of all recorded steps of a rank.

    Returns:
        The columns of `drafts` and `batch`, the requests that decode in its step, -1 where unknown.
    """
    names = (name.removesuffix(".parquet").rpartition("-rank") for name in bundle.meta.tables)
    replicas = [int(rank) for table, _, rank in names if table == "drafts"]
    frames = [bundle.frame("drafts", replica) for replica in replicas]
    rows = pd.concat(frames, ignore_index=True) if frames else empty_frame("drafts")
    rows = rows[rows["proposed"].between(0, MOST)]
    batch = steps.drop_duplicates("key").set_index("key")["decode_requests"]
    rows = rows.assign(batch=rows["key"].map(batch).fillna(-1).astype(np.int64))
    in_steps = rows["batch"] >= 0
    return rows[in_steps] if in_steps.any() else rows


def with_outcome(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose number of accepted drafts is known."""
    return rows[rows["accepted"] >= 0]


def positions_of(rows: pd.DataFrame) -> tuple[DraftPosition, ...]:
    """How often each place was drafted and accepted.

    Of two rows with 3 drafts, 2 and 0 of which are accepted: 1 of 2, 1 of 2 and 0 of 2.
    """
    proposed, accepted = (rows[name].to_numpy(np.int64) for name in ("proposed", "accepted"))
    positions = []
    for place in range(1, int(proposed.max(initial=0)) + 1):
        of, yes = int((proposed >= place).sum()), int((accepted >= place).sum())
        positions.append(DraftPosition(place, of, yes, *interval(yes, of)))
    return tuple(positions)


def interval(yes: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    interval(0, 60) == (0.0, 0.0602)
    """
    if not of:
        return 0.0, 1.0
    share, square = yes / of, _Z * _Z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = _Z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(middle - half, 0.0) if yes else 0.0, min(middle + half, 1.0) if yes < of else 1.0


def by_context(rows: pd.DataFrame) -> tuple[DraftGroup, ...]:
    """The acceptance by the tokens that a request has in the KV cache."""
    rows = rows[rows["context"] >= 0]
    place = np.searchsorted(_CONTEXTS, rows["context"].to_numpy(np.int64), side="right") - 1
    ends = [*(edge - 1 for edge in _CONTEXTS[1:]), None]
    return tuple(
        _group(_CONTEXTS[at], ends[at], rows[place == at]) for at in np.unique(place).tolist()
    )


def by_batch(rows: pd.DataFrame, step_us: dict[int, float]) -> tuple[DraftGroup, ...]:
    """By the requests that decode in a step; `step_us` has the mean step of each size."""
    sizes = [size for size in np.unique(rows["batch"]).tolist() if size > 0]
    return tuple(
        _group(size, size, rows[rows["batch"] == size], step_us.get(size)) for size in sizes
    )


def _group(
    low: int, high: int | None, rows: pd.DataFrame, step_us: float | None = None
) -> DraftGroup:
    drafted = rows[rows["proposed"] > 0]
    first = float((drafted["accepted"] > 0).mean()) if len(drafted) else 0.0
    proposed, accepted = (int(rows[name].sum()) for name in ("proposed", "accepted"))
    return DraftGroup(low, high, len(rows), proposed, accepted, first, step_us)
