"""Matches collectives of ranks whose batches differ, by when they ended on one clock.

Data-parallel replicas that share experts run every layer in step with each other, but each on a
batch of its own, and an idle replica on none. So neither a fingerprint nor a count joins their
steps. The ends of one collective lie near together on all ranks, nearer than two collectives of
one rank: two calls belong together where each is the other's nearest by its end, both ran at some
time together, and the kind is the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.ranks.kinds import is_joint
from spark_prof.analyzers.ranks.matching import Matched


def match_by_time(steps: pd.DataFrame, calls: Mapping[int, pd.DataFrame]) -> Matched:
    """Matches the calls of ranks that read one clock.

    Args:
        steps: the recorded steps of the lowest rank, in order, by which the result is told.
        calls: for each rank what `calls.collective_calls` returned.

    Returns:
        What `matching.match_collectives` returns; `steps` has the lowest rank only.
    """
    ranks = sorted(calls)
    joint = {rank: _joint(calls[rank]) for rank in ranks}
    first = joint[ranks[0]]
    partner = {ranks[0]: np.arange(len(first))}
    for rank in ranks[1:]:
        partner[rank] = _partners(first, joint[rank])
    turn = pd.Series(np.arange(len(steps)), steps["step"]).reindex(first["step"]).to_numpy()
    whole = np.flatnonzero(np.all([partner[rank] >= 0 for rank in ranks], axis=0) & (turn >= 0))
    parts = [
        joint[rank]
        .iloc[partner[rank][whole]]
        .assign(call=np.arange(len(whole)), rank=rank, turn=turn[whole].astype(np.int64))
        for rank in ranks
    ]
    found = pd.concat(parts).astype({"kind": str}).sort_values(["call", "rank"], ignore_index=True)
    columns = ["call", "turn", "kind", "rank", "start_ns", "end_ns"]
    unmatched = sum(map(len, calls.values())) - len(found)
    joined = pd.DataFrame({ranks[0]: steps["step"].to_numpy()})
    return Matched(joined, found[columns], 0, unmatched)


def _joint(calls: pd.DataFrame) -> pd.DataFrame:
    kept = calls["kind"].astype(str).map(is_joint).astype(bool)
    return calls[kept].sort_values("end_ns", ignore_index=True)


def _partners(first: pd.DataFrame, second: pd.DataFrame) -> npt.NDArray[np.int64]:
    """For each call of the first rank the row of its partner on the second, -1 for none."""
    if first.empty or second.empty:
        return np.full(len(first), -1, np.int64)
    ends = [calls["end_ns"].to_numpy(np.int64) for calls in (first, second)]
    there, back = _nearest(ends[0], ends[1]), _nearest(ends[1], ends[0])
    other = second.iloc[there]
    fits = back[there] == np.arange(len(first))
    fits &= other["kind"].astype(str).to_numpy() == first["kind"].astype(str).to_numpy()
    fits &= other["start_ns"].to_numpy() <= ends[0]
    fits &= first["start_ns"].to_numpy() <= other["end_ns"].to_numpy()
    return np.where(fits, there, -1).astype(np.int64)


def _nearest(times: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Index of the nearest of the sorted times, the earlier of two."""
    after = np.searchsorted(among, times).clip(1, max(len(among) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(among) - 1)
    return np.where(times - among[before] <= among[after] - times, before, after)
