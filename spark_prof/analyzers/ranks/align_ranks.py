"""Finds the same step and the same collective on several ranks.

A worker numbers the steps that it recorded itself, and ranks may begin at different steps, so
that numbers alone say nothing. A fingerprint of the batch can come back, after a preemption or
where a dead request's number is used again, so that it counts only where its neighbours fit too.

Data-parallel replicas that share experts run every layer in step with each other, but each on a
batch of its own, and an idle replica on none: neither a fingerprint nor a count joins their steps.
The ends of one collective lie near together on all ranks, nearer than two collectives of one rank:
two calls belong together where each is the other's nearest by its end, both ran at some time
together, and the kind is the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import collective_kind
from spark_prof.analyzers.rank_layout import RankLayout, Team, clock_name
from spark_prof.arrays import Int64s
from spark_prof.rules.collectives import KINDS
from spark_prof.traces.bundle import Bundle

__all__ = ["JOINT", "KINDS", "calls_among", "collective_calls", "collective_kind"]

JOINT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"})
"""Of which no participant can end before the last one has started.

A broadcast's root may be done before the others come; a send may end in its buffer, so that
`send_recv` is joint only where it is NCCL's way to exchange with everybody.
"""

_COLUMNS = ("name", "start_ns", "end_ns", "part", "stream", "step")


def collective_calls(bundle: Bundle, rank: int, *, every: bool = False) -> pd.DataFrame:
    """What `calls_among` finds among the kernels of a rank."""
    return calls_among(bundle.frame("kernels", rank, _COLUMNS), every=every)


def calls_among(kernels: pd.DataFrame, *, every: bool = False) -> pd.DataFrame:
    """One row per collective, in order of start.

    Args:
        kernels: name (as category), start_ns, end_ns, part, stream and step.
        every: also those that no recorded step launched, such as an idle replica's.

    Returns:
        step (-1 for none), kind, start_ns and end_ns.
    """
    rows = kernels.sort_values(["stream", "start_ns"], kind="stable", ignore_index=True)
    kinds = [collective_kind(name) for name in rows["name"].cat.categories]
    code = rows["name"].cat.codes.to_numpy()
    is_collective = np.array([kind is not None for kind in kinds] + [False])[code]
    first = np.flatnonzero(is_collective & (rows["part"] == 0).to_numpy())
    calls = pd.DataFrame(
        {
            "step": rows["step"].to_numpy()[first],
            "kind": pd.Categorical([str(kinds[c]) for c in code[first]]),
            "start_ns": rows["start_ns"].to_numpy()[first],
            "end_ns": _ends(rows, first),
        }
    )
    calls = calls[every | (calls["step"] >= 0)]
    return calls.sort_values("start_ns", kind="stable", ignore_index=True)


def _ends(rows: pd.DataFrame, first: npt.NDArray[np.intp]) -> Int64s:
    """When each call ended, of which `first` is the first row; an operator may have several.

    torch.distributed's CPU operators only start the transfer, and the wait for its end is no
    operator of its own: such a call ends where its thread's next operator begins.
    """
    start, end = (rows[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    name, stream, step = (rows[n].to_numpy() for n in ("name", "stream", "step"))
    begins = np.diff(stream, prepend=stream[:1] - 1) != 0
    begins |= np.diff(step, prepend=step[:1]) != 0
    begins[first] = True
    opened_by = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    later = np.flatnonzero((rows["part"] > 0).to_numpy() & (name == name[opened_by]))
    last = np.arange(len(rows))
    np.maximum.at(last, opened_by[later], later)
    last = last[first]
    after = np.minimum(last + 1, len(rows) - 1)
    waited = rows["name"].str.startswith("c10d::").to_numpy(bool)[first] & (after > last)
    waited &= (stream[after] == stream[first]) & (step[after] == step[first])
    ends: Int64s = np.where(waited, np.maximum(start[after], end[last]), end[last])
    return ends


def join_steps(steps: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """The steps that every rank has, a row each, with a column per rank of its step's number.

    Args:
        steps: for each rank its rows of the `steps` table, in the order in which they ran.
    """
    ranks = sorted(steps)
    first = steps[ranks[0]]
    keys = first["key"].tolist()
    places = {ranks[0]: {place: place for place in range(len(keys))}}
    for rank in ranks[1:]:
        places[rank] = dict(_common(keys, steps[rank]["key"].tolist()))
    shared = sorted(set.intersection(*(set(pairs) for pairs in places.values())))
    return pd.DataFrame(
        {
            rank: steps[rank]["step"].to_numpy()[[places[rank][place] for place in shared]]
            for rank in ranks
        }
    )


def _common(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Places of the same key in both sequences, ascending in both."""
    once = {key for key, times in Counter(left).items() if times == 1}
    once &= {key for key, times in Counter(right).items() if times == 1}
    where = {key: place for place, key in enumerate(right) if key in once}
    anchors = _ascending([(p, where[key]) for p, key in enumerate(left) if key in once])
    pairs: list[tuple[int, int]] = []
    before = (-1, -1)
    for anchor in [*anchors, (len(left), len(right))]:
        between = list(range(before[0] + 1, anchor[0])), list(range(before[1] + 1, anchor[1]))
        # Keys that come back are taken only where what lies between two anchors is the same.
        if [left[p] for p in between[0]] == [right[p] for p in between[1]]:
            pairs += zip(*between, strict=True)
        pairs.append(anchor)
        before = anchor
    return pairs[:-1]


def _ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs, ascending in the first, that ascends in the second too."""
    ends: list[int] = []
    last: list[int] = []
    previous: list[int] = []
    for index, (_, place) in enumerate(pairs):
        slot = bisect_left(ends, place)
        previous.append(last[slot - 1] if slot else -1)
        ends[slot : slot + 1] = [place]
        last[slot : slot + 1] = [index]
    chain: list[tuple[int, int]] = []
    index = last[-1] if last else -1
    while index >= 0:
        chain.append(pairs[index])
        index = previous[index]
    return chain[::-1]


_CALLS = ["call", "turn", "kind", "rank", "start_ns", "end_ns"]


@dataclass(frozen=True)
class Matched:
    """The collectives of one team."""

    # One row per step that all ranks have, a column per rank with its step number.
    steps: pd.DataFrame
    # One row per matched call and rank: _CALLS, of which `turn` is the row of `steps`.
    calls: pd.DataFrame
    unequal_steps: int  # steps in which the ranks ran different numbers of a collective
    # Calls that were not matched: of such a kind in such a step, of an unknown kind, or of a kind
    # whose participants may end before the last one has started.
    unmatched: int


def match_collectives(
    steps: Mapping[int, pd.DataFrame],
    calls: Mapping[int, pd.DataFrame],
    point_to_point: bool = False,
) -> Matched:
    """Matches the k-th collective of a kind in a step across ranks, each with its steps and calls.

    Sends and receives that link pipeline stages, point to point, are not matched.
    """
    joined = join_steps(steps)
    parts = []
    for rank in map(int, joined.columns):
        turn = pd.Series(np.arange(len(joined)), joined[rank])
        part = calls[rank].assign(rank=rank, turn=turn.reindex(calls[rank]["step"]).to_numpy())
        parts.append(part.dropna(subset="turn"))
    joint = pd.concat(parts, ignore_index=True).astype({"turn": np.int64, "kind": str})
    recorded = len(joint)
    joint = joint[joint["kind"].isin(JOINT)]
    if point_to_point:
        joint = joint[joint["kind"] != "send_recv"]
    counts = joint.groupby(["turn", "kind", "rank"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(joined.columns), fill_value=0)
    # Of a kind that ranks ran in different numbers nothing tells which is which.
    unequal = counts.index[counts.min(axis=1) != counts.max(axis=1)]
    comparable = ~pd.MultiIndex.from_frame(joint[["turn", "kind"]]).isin(unequal)
    joint = joint[comparable].sort_values(["rank", "start_ns"], kind="stable")
    order = joint.groupby(["turn", "kind", "rank"]).cumcount()
    call = pd.MultiIndex.from_arrays([joint["turn"], joint["kind"], order]).factorize(sort=True)[0]
    joint = joint.assign(call=call).sort_values(["call", "rank"], ignore_index=True)
    steps_of = unequal.get_level_values("turn")
    return Matched(joined, joint[_CALLS], len(set(steps_of)), recorded - len(joint))


def match_by_time(steps: pd.DataFrame, calls: Mapping[int, pd.DataFrame]) -> Matched:
    """Matches the calls of ranks that read one clock; steps are those of the lowest rank alone."""
    ranks = sorted(calls)
    joint = {
        rank: rows[rows["kind"].isin(JOINT)].sort_values("end_ns", ignore_index=True)
        for rank, rows in calls.items()
    }
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
    matched = (
        pd.concat(parts).astype({"kind": str}).sort_values(["call", "rank"], ignore_index=True)
    )
    unmatched = sum(map(len, calls.values())) - len(matched)
    joined = pd.DataFrame({ranks[0]: steps["step"].to_numpy()})
    return Matched(joined, matched[_CALLS], 0, unmatched)


def _partners(first: pd.DataFrame, second: pd.DataFrame) -> Int64s:
    """For each call of the first rank the row of its partner on the second, -1 for none."""
    if first.empty or second.empty:
        return np.full(len(first), -1, np.int64)
    ends = [calls["end_ns"].to_numpy(np.int64) for calls in (first, second)]
    nearest_second, nearest_first = _nearest(ends[0], ends[1]), _nearest(ends[1], ends[0])
    other = second.iloc[nearest_second]
    fits = nearest_first[nearest_second] == np.arange(len(first))
    fits &= other["kind"].astype(str).to_numpy() == first["kind"].astype(str).to_numpy()
    fits &= other["start_ns"].to_numpy() <= ends[0]
    fits &= first["start_ns"].to_numpy() <= other["end_ns"].to_numpy()
    return np.where(fits, nearest_second, -1).astype(np.int64)


def _nearest(times: Int64s, among: Int64s) -> npt.NDArray[np.intp]:
    """Index of the nearest of the sorted times, the earlier of two."""
    after = np.searchsorted(among, times).clip(max=len(among) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(times - among[before] <= among[after] - times, before, after)


@dataclass(frozen=True)
class Teamwork:
    """One tensor-parallel group with the collectives that its ranks ran together.

    `most_steps` is how many steps the rank with the most has.
    """

    team: Team
    matched: Matched
    most_steps: int


def teamwork_of(bundle: Bundle, layout: RankLayout) -> tuple[Teamwork, ...]:
    """One entry per group of which at least two ranks were recorded.

    Where experts are spread over replicas of one rank each, all of them are one group.
    """
    if layout.crosses_replicas:
        return _across_replicas(bundle, layout)
    teamworks = []
    for team in layout.teams:
        if len(team.ranks) > 1:
            steps = {rank: _steps(bundle, rank) for rank in team.ranks}
            calls = {rank: collective_calls(bundle, rank) for rank in team.ranks}
            matched = match_collectives(steps, calls, layout.pipeline > 1)
            teamworks.append(Teamwork(team, matched, max(map(len, steps.values()))))
    return tuple(teamworks)


def _across_replicas(bundle: Bundle, layout: RankLayout) -> tuple[Teamwork, ...]:
    """Empty where nothing tells a replica's own collectives from those of all replicas."""
    clocks = {clock_name(bundle.facts(rank)) for rank in bundle.ranks}
    if layout.tensor > 1 or layout.pipeline > 1 or len(clocks) > 1 or len(bundle.ranks) < 2:
        return ()
    steps = _steps(bundle, bundle.ranks[0])
    calls = {rank: collective_calls(bundle, rank, every=True) for rank in bundle.ranks}
    team = Team(0, 0, bundle.ranks, layout.data)
    return (Teamwork(team, match_by_time(steps, calls), len(steps)),)


def _steps(bundle: Bundle, rank: int) -> pd.DataFrame:
    steps = bundle.frame("steps", rank, ["step", "key", "watched"]).sort_values("step")
    return steps[steps["watched"]]
