"""How the ranks of a run are arranged, which share a clock, and what collectives groups ran.

vLLM numbers its workers with tensor parallelism innermost, then pipeline, then data parallelism
(vllm/distributed/parallel_state.py, initialize_model_parallel).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from spark_prof.analyzers.ranks.align_ranks import Matched, match_by_time, match_collectives
from spark_prof.analyzers.ranks.collective_calls import collective_calls
from spark_prof.traces.bundle import HIGHEST_RANK, Bundle


@dataclass(frozen=True)
class Team:
    """Ranks that run the same layers on the same batches: one tensor-parallel group."""

    replica: int  # data-parallel replica, from 0
    stage: int  # pipeline stage, from 0
    ranks: tuple[int, ...]  # its recorded ranks, ascending
    size: int  # how many ranks it has, recorded or not


@dataclass(frozen=True)
class Layout:
    """The sizes of the run's parallel groups and the recorded ranks in them."""

    tensor: int
    pipeline: int
    data: int
    teams: tuple[Team, ...]
    missing: tuple[int, ...]  # ranks of the run that the bundle does not have
    crosses_replicas: bool
    """Whether experts are spread over data-parallel replicas, whose batches differ."""

    @property
    def output_ranks(self) -> frozenset[int]:
        """The ranks whose result the scheduler waits for: the first of each last stage."""
        last = (self.pipeline - 1) * self.tensor
        size = self.tensor * self.pipeline
        return frozenset(replica * size + last for replica in range(self.data))


def layout_of(bundle: Bundle) -> Layout:
    """The arrangement that the ranks' own facts tell; all ranks one team where they tell none."""
    sizes = [_sizes(bundle.facts(rank)) for rank in bundle.ranks]
    tensor, pipeline, data = max((s for s in sizes if s), default=(0, 0, 0))
    if max(bundle.ranks, default=0) >= tensor * pipeline * data:
        tensor, pipeline, data = max(bundle.ranks, default=0) + 1, 1, 1
    members: dict[tuple[int, int], list[int]] = {}
    for rank in bundle.ranks:
        stage_of_all, _ = divmod(rank, tensor)
        replica, stage = divmod(stage_of_all, pipeline)
        members.setdefault((replica, stage), []).append(rank)
    teams = tuple(
        Team(replica, stage, tuple(ranks), tensor)
        for (replica, stage), ranks in sorted(members.items())
    )
    missing = tuple(sorted(set(range(tensor * pipeline * data)) - set(bundle.ranks)))
    return Layout(tensor, pipeline, data, teams, missing, data > 1 and _has_experts(bundle))


def clock_name(facts: Mapping[str, Any]) -> str:
    """Names the clock that a process read: that of its host's current boot.

    Containers of one host have names of their own but share the boot, and with it the clock.
    """
    return str(facts.get("boot") or facts.get("host") or "")


def _sizes(facts: Mapping[str, Any]) -> tuple[int, int, int] | None:
    parallel = facts.get("parallel")
    if not isinstance(parallel, dict):
        return None
    sizes = [parallel.get(name) for name in ("tensor", "pipeline", "data")]
    whole = [size for size in sizes if isinstance(size, int) and 0 < size <= HIGHEST_RANK]
    if len(whole) < 3 or math.prod(whole) > HIGHEST_RANK + 1:
        return None
    return whole[0], whole[1], whole[2]


def _has_experts(bundle: Bundle) -> bool:
    return any(
        (bundle.frame("modules", rank, ["component"])["component"] == "experts").any()
        for rank in bundle.ranks[:1]
    )


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
