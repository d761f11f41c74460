"""Puts together what the report says about the ranks of a parallel run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.layer_consistency import with_known_layers
from spark_prof.analyzers.lookup import NameColumn
from spark_prof.analyzers.model import ClockRow, CollectiveRow, Collectives, RankRow, SlowStep
from spark_prof.analyzers.ranks.collective_calls import collective_kind
from spark_prof.analyzers.ranks.collective_waits import aligned, slowest_of_steps, waits_of
from spark_prof.analyzers.ranks.rank_clocks import RankClock, clocks_of
from spark_prof.analyzers.ranks.rank_teams import Layout, Teamwork, layout_of, teamwork_of
from spark_prof.traces.bundle import Bundle


def remarks(
    layout: Layout, works: Sequence[Teamwork], clocks: Sequence[RankClock], contradictory: int
) -> tuple[str, ...]:
    """The sentences, those about what is missing first."""
    found = []
    if layout.missing:
        found.append(
            f"Ranks {_few(layout.missing)} of the run are not in this bundle. Where they were "
            "recorded on another host, spark-prof merge joins both; where their group has other "
            "ranks here, waits are lower bounds."
        )
    if layout.crosses_replicas:
        found.append(
            "Experts are spread over data-parallel replicas, whose batches differ: collectives "
            + ("were matched by the time at which they ended." if works else "were not matched.")
        )
    if layout.pipeline > 1:
        found.append(
            "Ranks are compared within a pipeline stage only. Sends and receives between stages "
            "are not matched."
        )
    if unequal := sum(work.matched.unequal_steps for work in works):
        found.append(
            f"In {_counted(unequal, 'step')} the ranks ran different numbers of a collective: "
            "nothing there was matched."
        )
    if apart := sum(work.most_steps - len(work.matched.steps) for work in works):
        found.append(f"Not on every rank of the group, so left out: {_counted(apart, 'step')}.")
    if contradictory:
        found.append(
            f"Left out: {_counted(contradictory, 'call')} in which one rank was done before "
            "another had begun. They do not belong together, or the clocks are wrong."
        )
    far = [clock for clock in clocks if not clock.same_host]
    if blind := [clock.rank for clock in far if clock.offset is None]:
        found.append(
            f"Nothing ties the clock of ranks {_few(blind)} to that of rank {far[0].reference}, "
            "or what does contradicts itself: their times cannot be compared."
        )
    if wrong := [clock.rank for clock in clocks if clock.contradicts]:
        found.append(
            f"Ranks {_few(wrong)} share a clock with rank {clocks[0].reference}, but their "
            "timestamps disagree by more than collectives allow."
        )
    return tuple(found)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _few(ranks: Sequence[int]) -> str:
    """At most eight numbers."""
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


@dataclass(frozen=True)
class RankShare:
    """What collectives took from one rank, in us, and how often it was the slowest."""

    wait_us: float  # in all steps
    transfer_us: float  # in all steps
    slowest_steps: int  # steps in which it came last
    held_up_us: float  # how long the others waited for it in such a step, on average

    def added_to(self, row: RankRow) -> RankRow:
        """The row with these figures."""
        return replace(row, **asdict(self))


@dataclass(frozen=True)
class _TeamResult:
    """One group's calls with their waits and places, and its steps."""

    work: Teamwork
    calls: pd.DataFrame
    steps: pd.DataFrame
    contradictory: int


def collectives_of(bundle: Bundle) -> tuple[Collectives, dict[int, RankShare]]:
    """What the ranks did to each other, and the share of each rank in it.

    A bundle of one rank has nothing to say here. A rank without matched collectives has no share.
    """
    layout = layout_of(bundle)
    works = teamwork_of(bundle, layout)
    clocks = clocks_of(bundle, layout, works)
    results = [r for work in works if (r := _result(bundle, work, clocks)) is not None]
    shares: dict[int, RankShare] = {}
    for result in results:
        shares |= _shares(result)
    summed = [_means(result) for result in results]
    joined = sum(len(work.matched.steps) for work in works)
    found = Collectives(
        matched=sum(result.calls["call"].nunique() for result in results),
        unmatched=sum(work.matched.unmatched for work in works)
        + sum(result.contradictory for result in results),
        steps=joined,
        steps_left_out=sum(work.most_steps + work.matched.unequal_steps for work in works) - joined,
        wait_us=sum(wait for wait, _ in summed),
        transfer_us=sum(transfer for _, transfer in summed),
        clocks=tuple(map(_clock_row, clocks)),
        items=_items(results),
        slow_steps=tuple(step for result in results for step in _slow_steps(result)),
        notes=remarks(layout, works, clocks, sum(r.contradictory for r in results)),
    )
    return found, shares


def _result(bundle: Bundle, work: Teamwork, clocks: Sequence[RankClock]) -> _TeamResult | None:
    """None where the ranks read clocks that nothing joins, or have no collective in common."""
    mine = [clock for clock in clocks if clock.rank in work.team.ranks]
    far = [clock for clock in mine if not clock.same_host]
    if work.matched.calls.empty or any(clock.offset is None for clock in far):
        return None
    offsets = {clock.rank: clock.offset for clock in far if clock.offset is not None}
    uncertain = max((offset.uncertainty_ns for offset in offsets.values()), default=0.0)
    uncertain += max((abs(c.offset.ns) for c in mine if c.contradicts and c.offset), default=0.0)
    calls = work.matched.calls
    calls = aligned(calls.assign(own_start_ns=calls["start_ns"]), offsets)
    waits = waits_of(calls, uncertain)
    steps = slowest_of_steps(waits.calls, uncertain)
    return _TeamResult(work, _placed(bundle, waits.calls), steps, waits.contradictory)


def _placed(bundle: Bundle, calls: pd.DataFrame) -> pd.DataFrame:
    """The calls with layer and the component of what ran before, as on the group's lowest rank."""
    rank = int(calls["rank"].min()) if len(calls) else bundle.ranks[0]
    placed = with_known_layers(bundle, rank, place_kernels(bundle, rank))
    component = placed["component"].astype(str).to_numpy()
    names = NameColumn(placed["name"])
    collective = names.flags(lambda name: collective_kind(name) is not None)
    worked = ~collective & ~np.isin(component, ["memcpy", "other"])
    before = np.maximum.accumulate(np.where(worked, np.arange(len(placed)), -1))
    mine = calls[calls["rank"] == rank]
    own = np.flatnonzero(collective & (placed["part"] == 0).to_numpy())
    row = own[np.searchsorted(placed["start_ns"].to_numpy()[own], mine["own_start_ns"])]
    step = placed["step"].to_numpy()
    same = (before[row] >= 0) & (step[before[row]] == step[row])
    places = pd.DataFrame(
        {
            "after": np.where(same, component[before[row]], ""),
            "layer": placed["layer"].to_numpy()[row],
        },
        index=pd.Index(mine["call"]),
    )
    return calls.join(places, on="call")


def _shares(result: _TeamResult) -> dict[int, RankShare]:
    sums = result.calls.groupby("rank")[["wait_ns", "transfer_ns"]].sum() / 1e3
    named = result.steps.groupby("slowest")["held_up_ns"].agg(["size", "sum"])
    named = named.reindex(sums.index, fill_value=0)
    return {
        rank: RankShare(float(wait), float(transfer), int(size), float(held) / max(size, 1) / 1e3)
        for rank, wait, transfer, size, held in zip(
            sums.index.tolist(), sums["wait_ns"], sums["transfer_ns"],
            named["size"], named["sum"], strict=True,
        )
    }  # fmt: skip


def _means(result: _TeamResult) -> tuple[float, float]:
    """Wait and transfer of the group, as mean over its ranks in us."""
    sums = result.calls[["wait_ns", "transfer_ns"]].sum() / 1e3 / len(result.work.team.ranks)
    return float(sums["wait_ns"]), float(sums["transfer_ns"])


def _items(results: Sequence[_TeamResult]) -> tuple[CollectiveRow, ...]:
    parts = []
    for result in results:
        scale = 1e3 * len(result.work.team.ranks)
        groups = result.calls.groupby(["kind", "after", "layer"])
        sums = groups.agg(calls=("call", "nunique"), wait=("wait_ns", "sum"),
                          transfer=("transfer_ns", "sum"))  # fmt: skip
        parts.append(sums.assign(wait=sums["wait"] / scale, transfer=sums["transfer"] / scale))
    if not parts:
        return ()
    table = pd.concat(parts).groupby(level=[0, 1, 2]).sum().sort_values("wait", ascending=False)
    return tuple(
        CollectiveRow(kind, after, int(layer) if layer >= 0 else None, int(calls), wait, transfer)
        for (kind, after, layer), calls, wait, transfer in table.itertuples(name=None)
    )


def _slow_steps(result: _TeamResult) -> list[SlowStep]:
    team, steps = result.work.team, result.work.matched.steps
    numbers = steps[team.ranks[0]].to_numpy()[result.steps.index.to_numpy(np.int64)]
    return [
        SlowStep(
            step=int(number),
            stage=team.stage,
            replica=team.replica,
            slowest=int(slowest) if slowest >= 0 else None,
            held_up_us=float(held) / 1e3,
            wait_us=float(wait) / 1e3,
        )
        for number, slowest, held, wait in zip(
            numbers, *(result.steps[n] for n in ("slowest", "held_up_ns", "wait_ns")), strict=True
        )
    ]


def _clock_row(clock: RankClock) -> ClockRow:
    offset = clock.offset
    if offset is None:
        return ClockRow(
            clock.rank, clock.reference, clock.same_host, None, None, None, clock.met, "none"
        )
    return ClockRow(
        rank=clock.rank,
        reference=clock.reference,
        same_host=clock.same_host,
        offset_us=offset.ns / 1e3,
        drift_ppm=offset.drift * 1e6,
        uncertainty_us=offset.uncertainty_ns / 1e3,
        events=offset.events,
        basis=offset.basis,
    )
