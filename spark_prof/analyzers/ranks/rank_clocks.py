"""The clock of every rank against the lowest rank's, and how far a merged bundle's times move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.ranks.clock_offsets import Offset, offset_of_collectives, offset_of_steps
from spark_prof.analyzers.ranks.rank_teams import (
    Layout,
    Teamwork,
    clock_name,
    layout_of,
    teamwork_of,
)
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.merge_ranks import Shift


@dataclass(frozen=True)
class RankClock:
    """One rank's clock; `offset` is None where nothing tells it, or what does contradicts itself.

    On the reference's own host (`same_host`) the offset is only a check of the timestamps. `met`
    is how many collectives its host ran together with the reference's.
    """

    rank: int
    reference: int
    same_host: bool
    offset: Offset | None
    met: int

    @property
    def contradicts(self) -> bool:
        """Whether ranks of one host disagree about the time although they share the clock."""
        if self.offset is None:
            return self.same_host and self.met > 0
        return self.same_host and abs(self.offset.ns) > self.offset.uncertainty_ns


def clocks_of(bundle: Bundle, layout: Layout, works: Sequence[Teamwork]) -> tuple[RankClock, ...]:
    """One entry per recorded rank but the lowest, which is the reference."""
    if len(bundle.ranks) < 2:
        return ()
    names = {rank: clock_name(bundle.facts(rank)) for rank in bundle.ranks}
    reference = bundle.ranks[0]
    here = {rank for rank in bundle.ranks if names[rank] == names[reference]}
    hosts: dict[str, tuple[Offset | None, int]] = {}
    found = []
    for rank in bundle.ranks[1:]:
        if rank in here:
            offset, met = _by_collectives(works, {reference}, {rank})
        else:
            name = names[rank]
            if name not in hosts:
                there = {r for r in bundle.ranks if names[r] == name}
                offset, met = _by_collectives(works, here, there)
                if not met:
                    offset = _by_steps(bundle, layout, names[reference], there)
                hosts[name] = offset, met
            offset, met = hosts[name]
        found.append(RankClock(rank, reference, rank in here, offset, met))
    return tuple(found)


def _by_collectives(
    works: Sequence[Teamwork], here: set[int], there: set[int]
) -> tuple[Offset | None, int]:
    """From every collective with participants on both sides, and how many there are."""
    sides = []
    for work in works:
        calls = work.matched.calls
        if not (here & set(work.team.ranks) and there & set(work.team.ranks)):
            continue
        both = [
            calls[calls["rank"].isin(side)]
            .groupby("call")
            .agg({"start_ns": "max", "end_ns": "min"})
            .add_suffix(name)
            for side, name in ((here, "_here"), (there, "_there"))
        ]
        sides.append(both[0].join(both[1], how="inner"))
    if not sides:
        return None, 0
    rows = pd.concat(sides)
    columns = ("start_ns_here", "end_ns_here", "start_ns_there", "end_ns_there")
    times = [rows[name].to_numpy(np.int64) for name in columns]
    return offset_of_collectives(*times), len(rows)


def _by_steps(bundle: Bundle, layout: Layout, clock: str, there: set[int]) -> Offset | None:
    """From the scheduler's record, where the scheduler read the reference clock."""
    workers: list[pd.DataFrame] = []
    for replica, facts in _schedulers(bundle.meta.facts).items():
        if clock_name(facts) != clock:
            continue
        engine = bundle.frame("engine", replica, ["key", "schedule_ns", "update_ns"])
        engine = engine[engine["update_ns"] > 0].drop_duplicates("key", keep=False)
        size = layout.tensor * layout.pipeline
        for rank in sorted(there & set(range(replica * size, (replica + 1) * size))):
            steps = bundle.frame("steps", rank, ["key", "start_ns", "end_ns"])
            steps = steps.drop_duplicates("key", keep=False).merge(engine, on="key")
            workers.append(steps.assign(awaited=rank in layout.output_ranks))
    if not workers:
        return None
    rows = pd.concat(workers)
    awaited = rows[rows["awaited"]]
    return offset_of_steps(
        *(rows[name].to_numpy(np.int64) for name in ("schedule_ns", "start_ns")),
        *(awaited[name].to_numpy(np.int64) for name in ("update_ns", "end_ns")),
    )


def _schedulers(facts: Mapping[str, Mapping[str, object]]) -> dict[int, Mapping[str, object]]:
    """The facts of each scheduler, by data-parallel replica."""
    numbers = {n: n.removeprefix("engine") for n in facts if n.startswith("engine")}
    return {int(digits): facts[n] for n, digits in numbers.items() if digits.isdecimal()}


def wanted_shifts(bundle: Bundle) -> dict[str, Shift]:
    """For each process on another host than the lowest rank's, what is known about its clock.

    A scheduler on such a host has the offset of the ranks there. An offset that may as well be
    none moves nothing.
    """
    shifts: dict[str, Shift] = {}
    hosts: dict[str, Shift] = {}
    for clock in _far(bundle):
        if clock.offset is None:
            continue
        offset = clock.offset
        shift = Shift(
            reference_rank=clock.reference,
            offset_ns=offset.ns,
            drift=offset.drift,
            at_ns=offset.at_ns,
            uncertainty_ns=offset.uncertainty_ns,
            basis=offset.basis,
            events=offset.events,
            applied=abs(offset.ns) > offset.uncertainty_ns or offset.drift != 0.0,
        )
        shifts[f"rank{clock.rank}"] = hosts[clock_name(bundle.facts(clock.rank))] = shift
    for name, facts in bundle.meta.facts.items():
        if name.startswith("engine") and (shared := hosts.get(clock_name(facts))):
            shifts[name] = shared
    return shifts


def untied(bundle: Bundle) -> tuple[str, ...]:
    """One line for each rank whose clock nothing ties to that of the lowest rank."""
    return tuple(
        f"rank {clock.rank}: nothing ties its host's clock to that of rank {clock.reference}; its "
        "times stand as they were recorded"
        for clock in _far(bundle)
        if clock.offset is None
    )


def _far(bundle: Bundle) -> list[RankClock]:
    layout = layout_of(bundle)
    clocks = clocks_of(bundle, layout, teamwork_of(bundle, layout))
    return [clock for clock in clocks if not clock.same_host]
