"""How the ranks of a run are arranged, and which share a clock.

vLLM numbers its workers with tensor parallelism innermost, then pipeline, then data parallelism
(vllm/distributed/parallel_state.py, initialize_model_parallel).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_prof.analyzers.lookup import mapping_in
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
    sizes = map(mapping_in(facts, "parallel").get, ("tensor", "pipeline", "data"))
    whole = [size for size in sizes if isinstance(size, int) and 0 < size <= HIGHEST_RANK]
    if len(whole) < 3 or math.prod(whole) > HIGHEST_RANK + 1:
        return None
    return whole[0], whole[1], whole[2]


def _has_experts(bundle: Bundle) -> bool:
    return any(
        (bundle.frame("modules", rank, ["component"])["component"] == "experts").any()
        for rank in bundle.ranks[:1]
    )
