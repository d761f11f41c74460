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
class RankLayout:
    """The sizes of the run's parallel groups and the recorded ranks in them."""

    tensor: int
    pipeline: int
    data: int
    teams: tuple[Team, ...]
    missing: tuple[int, ...]  # ranks of the run that the bundle does not have
    crosses_replicas: bool
    """Whether experts are spread over data-parallel replicas, whose batches differ."""
    sizes_known: bool  # whether the recording tells the sizes; else all its ranks are one group
    told_replicas: int  # data-parallel size that the ranks know; `data` has those that know nothing

    @property
    def output_ranks(self) -> frozenset[int]:
        """The ranks whose result the scheduler waits for: the first of each last stage."""
        last = (self.pipeline - 1) * self.tensor
        size = self.tensor * self.pipeline
        return frozenset(replica * size + last for replica in range(self.data))


@dataclass(frozen=True)
class Parallel:
    """The run that a report's rank is of; a size is None where the recording does not tell it."""

    rank: int  # whose figures the report has
    ranks: tuple[int, ...]  # those in the recording
    missing: tuple[int, ...]  # those of the run that it does not have
    world: int  # how many the run has
    tensor: int | None  # tensor-parallel size
    pipeline: int | None  # pipeline stages
    data: int | None  # replicas

    @property
    def sizes(self) -> tuple[str, ...]:
        """How the run is parallel: words such as `tensor parallel 2`; empty if unknown."""
        kinds = (
            ("tensor parallel {}", self.tensor),
            ("pipeline parallel {}", self.pipeline),
            ("{} replicas", self.data),
        )
        return tuple(text.format(size) for text, size in kinds if size and size > 1)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """What has to be the same on two sides for a rank of each to do the same work."""
        return self.world, self.tensor, self.pipeline, self.data

    @property
    def described(self) -> str:
        """The sizes in words, else the number of ranks."""
        return ", ".join(self.sizes) or f"{self.world} rank{'s' * (self.world > 1)}"


def layout_of(bundle: Bundle) -> RankLayout:
    """The arrangement that the ranks' own facts tell; all ranks one team where they tell none."""
    facts = [bundle.facts(rank) for rank in bundle.ranks]
    sizes_of_run = max((sizes for fact in facts if (sizes := _sizes(fact))), default=None)
    highest, replicas = max(bundle.ranks, default=0), 1
    if sizes_of_run is None:
        # PyTorch's profiler tells how many there are, of each replica that knows no other.
        worlds = [fact.get("world_size") for fact in facts if not fact.get("replica")]
        sizes_of_world = [w for w in worlds if isinstance(w, int) and w <= HIGHEST_RANK + 1]
        alone = len(sizes_of_world) < len(facts)
        tensor, pipeline, data = max([highest + 1, *([] if alone else sizes_of_world)]), 1, 1
    else:
        tensor, pipeline, replicas = sizes_of_run
        # Replicas of a dense model are engines of their own, each of which knows of no other.
        data = max(replicas, highest // (tensor * pipeline) + 1)
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
    crosses = replicas > 1 and _has_experts(bundle)
    return RankLayout(
        tensor, pipeline, data, teams, missing, crosses, sizes_of_run is not None, replicas
    )


def parallel_of(bundle: Bundle, rank: int) -> Parallel:
    """What the report of a rank says about the run that it is of."""
    layout = layout_of(bundle)
    return Parallel(
        rank=rank,
        ranks=bundle.ranks,
        missing=layout.missing,
        world=len(bundle.ranks) + len(layout.missing),
        tensor=layout.tensor if layout.sizes_known else None,
        pipeline=layout.pipeline if layout.sizes_known else None,
        data=layout.data if layout.sizes_known else None,
    )


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
