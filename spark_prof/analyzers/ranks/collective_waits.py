"""Tells waiting from transferring inside matched collectives, and who was waited for.

A rank waits from its own start to the latest start of all, and transfers from there to its end, so
that the two are the collective's whole time on that rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.ranks.clock_offsets import TIMER_NS, Offset

_TIMES = ("start_ns", "end_ns")


@dataclass(frozen=True)
class Waits:
    """Calls of a team, split."""

    # The calls with `wait_ns`, `transfer_ns`, `last` (whether this rank came last) and
    # `others_wait_ns` (mean wait of the other ranks where it did, else 0).
    calls: pd.DataFrame
    contradictory: int  # rows left out, because a rank was done before another had begun


def aligned(calls: pd.DataFrame, offsets: Mapping[int, Offset]) -> pd.DataFrame:
    """The calls on one clock; a rank without an offset reads the reference clock."""
    parts = []
    for rank, part in calls.groupby("rank", sort=False):
        offset = offsets.get(int(str(rank)))
        if offset is not None:
            shift = {n: part[n] - offset.at(part[n].to_numpy(np.int64)) for n in _TIMES}
            part = part.assign(**shift)
        parts.append(part)
    return pd.concat(parts).sort_index() if parts else calls


def waits_of(calls: pd.DataFrame, uncertainty_ns: float) -> Waits:
    """Splits every call.

    Args:
        calls: matched calls on one clock: call, turn, kind, rank, start_ns, end_ns.
        uncertainty_ns: by how much the clocks of two of the ranks may still differ.
    """
    latest = calls.groupby("call")["start_ns"].transform("max").to_numpy(np.int64)
    start, end = (calls[name].to_numpy(np.int64) for name in _TIMES)
    wrong = end < latest - uncertainty_ns - TIMER_NS
    bad = pd.Series(wrong, calls.index).groupby(calls["call"]).transform("any").to_numpy(bool)
    wait = np.minimum(latest, end) - start
    last = start == latest
    found = calls.assign(
        wait_ns=wait,
        transfer_ns=end - start - wait,
        last=last,
        others_wait_ns=np.where(last, _others(calls, wait), 0.0),
    )
    return Waits(found[~bad], int(bad.sum()))


def _others(calls: pd.DataFrame, wait: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Mean wait of the other ranks of each call."""
    groups = pd.Series(wait, calls.index).groupby(calls["call"])
    total, size = groups.transform("sum").to_numpy(), groups.transform("size").to_numpy()
    found: npt.NDArray[np.float64] = (total - wait) / np.maximum(size - 1, 1)
    return found


def slowest_of_steps(calls: pd.DataFrame, uncertainty_ns: float) -> pd.DataFrame:
    """The rank that held up each step the most.

    Args:
        calls: `Waits.calls`.
        uncertainty_ns: by how much the clocks of two ranks may differ; lateness below it, at the
            mean call where the rank came last, does not name anybody.

    Returns:
        One row per turn: `slowest` (-1 where nobody can be named), `held_up_ns` (how long the
        others waited for that rank on average) and `wait_ns` (mean over ranks of all their waits).
    """
    by_rank = calls.groupby(["turn", "rank"]).agg(
        held=("others_wait_ns", "sum"), times=("last", "sum"), wait=("wait_ns", "sum")
    )
    held = by_rank["held"].unstack(fill_value=0)
    each = (by_rank["held"] / by_rank["times"].clip(lower=1)).unstack(fill_value=0)
    if held.empty:
        return pd.DataFrame(columns=["slowest", "held_up_ns", "wait_ns"])
    place = held.to_numpy().argmax(axis=1)
    rows = np.arange(len(held))
    told = each.to_numpy()[rows, place] > uncertainty_ns
    return pd.DataFrame(
        {
            "slowest": np.where(told, held.columns.to_numpy(np.int64)[place], -1),
            "held_up_ns": np.where(told, held.to_numpy()[rows, place], 0.0),
            "wait_ns": by_rank["wait"].groupby("turn").mean(),
        },
        index=held.index,
    )
