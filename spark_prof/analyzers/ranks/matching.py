"""Matches the collectives of ranks that run them together, and undoes their clocks' offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.ranks.joined import join_steps
from spark_prof.analyzers.ranks.kinds import is_joint


@dataclass(frozen=True)
class Matched:
    """The collectives of one team.

    Attributes:
        steps: one row per step that all ranks have, a column per rank with its step number.
        calls: one row per matched call and rank: `call` (from 0), `turn` (row of `steps`), `kind`,
            `rank`, `start_ns`, `end_ns`.
        unequal_steps: steps left out because the ranks ran different numbers of a collective.
        unmatched: calls that were not matched: in such steps, of an unknown kind, or of a kind
            whose participants may end before the last one has started.
    """

    steps: pd.DataFrame
    calls: pd.DataFrame
    unequal_steps: int
    unmatched: int


def match_collectives(
    steps: Mapping[int, pd.DataFrame],
    calls: Mapping[int, pd.DataFrame],
    point_to_point: bool = False,
) -> Matched:
    """Matches the k-th collective of a kind in a step across ranks.

    Args:
        steps: for each rank its recorded steps in order: `step` and `key`.
        calls: for each rank what `calls.collective_calls` returned.
        point_to_point: whether sends and receives link pipeline stages; they are not matched then.
    """
    joined = join_steps(steps)
    parts = []
    for rank in map(int, joined.columns):
        turn = pd.Series(np.arange(len(joined)), joined[rank])
        part = calls[rank].assign(rank=rank, turn=turn.reindex(calls[rank]["step"]).to_numpy())
        parts.append(part.dropna(subset="turn"))
    found = pd.concat(parts, ignore_index=True).astype({"turn": np.int64, "kind": str})
    joint = found["kind"].map(is_joint).astype(bool) & ~(
        (found["kind"] == "send_recv") & point_to_point
    )
    left_out = int((~joint).sum())
    found = found[joint]
    counts = found.groupby(["turn", "kind", "rank"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(joined.columns), fill_value=0)
    unequal = counts.index[counts.min(axis=1) != counts.max(axis=1)].get_level_values("turn")
    bad = found["turn"].isin(unequal)
    left_out += int(bad.sum())
    found = found[~bad].sort_values(["rank", "start_ns"], kind="stable")
    order = found.groupby(["turn", "kind", "rank"]).cumcount()
    call = pd.MultiIndex.from_arrays([found["turn"], found["kind"], order]).factorize(sort=True)[0]
    found = found.assign(call=call).sort_values(["call", "rank"], ignore_index=True)
    columns = ["call", "turn", "kind", "rank", "start_ns", "end_ns"]
    return Matched(joined, found[columns], len(set(unequal)), left_out)
