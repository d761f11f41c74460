"""Reads and matches the collectives of every tensor-parallel group of a bundle."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from spark_prof.analyzers.ranks.calls import collective_calls
from spark_prof.analyzers.ranks.layout import Layout, Team, clock_name
from spark_prof.analyzers.ranks.matching import Matched, match_collectives
from spark_prof.analyzers.ranks.overlap import match_by_time
from spark_prof.traces.bundle import Bundle


@dataclass(frozen=True)
class Teamwork:
    """One tensor-parallel group with the collectives that its ranks ran together.

    `most_steps` is how many steps the rank with the most has.
    """

    team: Team
    matched: Matched
    most_steps: int


def teamwork_of(bundle: Bundle, layout: Layout) -> tuple[Teamwork, ...]:
    """One entry per group of which at least two ranks were recorded.

    Where experts are spread over replicas of one rank each, all of them are one group.
    """
    if layout.crosses_replicas:
        return _across_replicas(bundle, layout)
    teams = (team for team in layout.teams if len(team.ranks) > 1)
    return tuple(_teamwork(bundle, team, layout.pipeline > 1) for team in teams)


def _across_replicas(bundle: Bundle, layout: Layout) -> tuple[Teamwork, ...]:
    """Empty where nothing tells a replica's own collectives from those of all replicas."""
    clocks = {clock_name(bundle.facts(rank)) for rank in bundle.ranks}
    if layout.tensor > 1 or layout.pipeline > 1 or len(clocks) > 1 or len(bundle.ranks) < 2:
        return ()
    steps = _steps(bundle, bundle.ranks[0])
    calls = {rank: collective_calls(bundle, rank, every=True) for rank in bundle.ranks}
    team = Team(0, 0, bundle.ranks, layout.data)
    return (Teamwork(team, match_by_time(steps, calls), len(steps)),)


def _teamwork(bundle: Bundle, team: Team, point_to_point: bool) -> Teamwork:
    steps = {rank: _steps(bundle, rank) for rank in team.ranks}
    calls = {rank: collective_calls(bundle, rank) for rank in team.ranks}
    matched = match_collectives(steps, calls, point_to_point)
    return Teamwork(team, matched, max(map(len, steps.values())))


def _steps(bundle: Bundle, rank: int) -> pd.DataFrame:
    steps = bundle.frame("steps", rank, ["step", "key", "watched"]).sort_values("step")
    return steps[steps["watched"]]
