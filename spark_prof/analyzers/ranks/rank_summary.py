"""Puts together what the report says about the ranks of a parallel run.

A rank waits in a collective from its own start to the latest start of all, and transfers from there
to its end, so that the two are the collective's whole time on that rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.classify.classifier import exchange_inside, short_name
from spark_prof.analyzers.layer_consistency import with_known_layers
from spark_prof.analyzers.lookup import NameColumn
from spark_prof.analyzers.model import (
    ClockRow,
    CollectiveRow,
    Collectives,
    Lateness,
    SlowStep,
)
from spark_prof.analyzers.rank_layout import RankLayout, layout_of
from spark_prof.analyzers.ranks.align_ranks import (
    Teamwork,
    collective_calls,
    collective_kind,
    teamwork_of,
)
from spark_prof.analyzers.ranks.lateness import lateness_of, usual_steps
from spark_prof.analyzers.ranks.rank_clocks import TIMER_NS, Offset, RankClock, clocks_of
from spark_prof.traces.bundle import Bundle

_TIMES = ("start_ns", "end_ns")
_MOST_NAMED = 3


def aligned(calls: pd.DataFrame, offsets: Mapping[int, Offset]) -> pd.DataFrame:
    """The calls on one clock; a rank without an offset reads the reference clock."""
    calls = calls.copy()
    for rank, offset in offsets.items():
        mine = calls["rank"] == rank
        for name in _TIMES:
            calls.loc[mine, name] -= offset.at(calls.loc[mine, name].to_numpy(np.int64))
    return calls


def waits_of(calls: pd.DataFrame, uncertainty_ns: float) -> tuple[pd.DataFrame, int]:
    """Splits every one of matched calls on one clock, within its uncertainty.

    Returns:
        The calls with `wait_ns`, `transfer_ns`, `last` (whether this rank came last) and
        `others_wait_ns` (mean wait of the other ranks where it did, else 0); and how many rows were
        left out, because a rank was done before another had begun.
    """
    latest = calls.groupby("call")["start_ns"].transform("max").to_numpy(np.int64)
    start, end = (calls[name].to_numpy(np.int64) for name in _TIMES)
    wrong = end < latest - uncertainty_ns - TIMER_NS
    bad = pd.Series(wrong, calls.index).groupby(calls["call"]).transform("any").to_numpy(bool)
    wait = np.minimum(latest, end) - start
    last = start == latest
    waits = pd.Series(wait, calls.index).groupby(calls["call"])
    others_wait, size = waits.transform("sum").to_numpy() - wait, waits.transform("size").to_numpy()
    split_calls = calls.assign(
        wait_ns=wait,
        transfer_ns=end - start - wait,
        last=last,
        others_wait_ns=np.where(last, others_wait / np.maximum(size - 1, 1), 0.0),
    )
    return split_calls[~bad], int(bad.sum())


def waits_by_length(calls: pd.DataFrame) -> pd.DataFrame:
    """The waits in collectives where no clock joins the ranks: all leave a collective together.

    Who stays in it the shortest came last, and what others stay longer is their wait. The shortest
    stay is all transfer.
    """
    length = calls["end_ns"] - calls["start_ns"]
    shortest = length.groupby(calls["call"]).transform("min")
    wait, last = length - shortest, length == shortest
    waits = wait.groupby(calls["call"])
    others_wait, size = waits.transform("sum") - wait, waits.transform("size")
    mean = others_wait / (size - 1).clip(lower=1)
    return calls.assign(
        wait_ns=wait, transfer_ns=shortest, last=last, others_wait_ns=mean.where(last, 0.0)
    )


def slowest_of_steps(calls: pd.DataFrame, uncertainty_ns: float) -> pd.DataFrame:
    """The rank that held up each step the most, of calls that `waits_of` returned.

    Lateness below the clocks' uncertainty, at the mean call where the rank came last, does not name
    anybody.

    Returns:
        One row per turn: `slowest` (-1 where nobody can be named), `held_up_ns` (how long the
        others waited for that rank on average) and `wait_ns` (mean over ranks of all their waits).
    """
    by_rank = calls.groupby(["turn", "rank"]).agg(
        held=("others_wait_ns", "sum"), times=("last", "sum"), wait=("wait_ns", "sum")
    )
    held_up = by_rank["held"].unstack(fill_value=0)
    mean_held_up = (by_rank["held"] / by_rank["times"].clip(lower=1)).unstack(fill_value=0)
    if held_up.empty:
        return pd.DataFrame(columns=["slowest", "held_up_ns", "wait_ns"])
    place = held_up.to_numpy().argmax(axis=1)
    rows = np.arange(len(held_up))
    nameable = mean_held_up.to_numpy()[rows, place] > uncertainty_ns
    return pd.DataFrame(
        {
            "slowest": np.where(nameable, held_up.columns.to_numpy(np.int64)[place], -1),
            "held_up_ns": np.where(nameable, held_up.to_numpy()[rows, place], 0.0),
            "wait_ns": by_rank["wait"].groupby("turn").mean(),
        },
        index=held_up.index,
    )


def hidden_in(bundle: Bundle) -> tuple[str, ...]:
    """The kernels that multiply and exchange between ranks in one, by their short names."""
    names = {
        str(name)
        for rank in bundle.ranks
        for name in bundle.frame("kernels", rank, ["name"])["name"].cat.categories
    }
    return tuple(sorted({short_name(name) for name in names if exchange_inside(name)}))


def remarks(
    layout: RankLayout,
    works: Sequence[Teamwork],
    clocks: Sequence[RankClock],
    contradictory: int,
    hidden: Sequence[str] = (),
) -> tuple[str, ...]:
    """The sentences, those about what is missing first."""
    sentences = []
    if layout.missing:
        sentences.append(
            f"Ranks {_few(layout.missing)} of the run are not in this bundle. Where they were "
            "recorded on another host, spark-prof merge joins both; where their group has other "
            "ranks here, waits are lower bounds."
        )
    if layout.crosses_replicas:
        sentences.append(
            "Experts are spread over data-parallel replicas, whose batches differ: collectives "
            + ("were matched by the time at which they ended." if works else "were not matched.")
        )
    if layout.pipeline > 1:
        sentences.append(
            "Ranks are compared within a pipeline stage only. Sends and receives between stages "
            "are not matched."
        )
    if unequal := sum(work.matched.unequal_steps for work in works):
        sentences.append(
            f"In {_counted(unequal, 'step')} the ranks ran different numbers of a collective: "
            "nothing of that kind was matched there."
        )
    if apart := sum(work.most_steps - len(work.matched.steps) for work in works):
        sentences.append(f"Not on every rank of the group, so left out: {_counted(apart, 'step')}.")
    if contradictory:
        sentences.append(
            f"Left out: {_counted(contradictory, 'call')} in which one rank was done before "
            "another had begun. They do not belong together, or the clocks are wrong."
        )
    if hidden:
        sentences.append(
            f"{', '.join(hidden[:_MOST_NAMED])} multiply and exchange between ranks in one kernel: "
            "their waits are no collective's, and in no figure here."
        )
    by_length = (
        ": waits are by how much longer a rank stays in a collective than the one that stays the "
        "shortest."
        if any(len(work.matched.calls) for work in works)
        else ": their times cannot be compared."
    )
    if far := [clock.rank for clock in clocks if clock.blind and not clock.same_host]:
        sentences.append(
            f"Nothing ties the clock of {_named(far)} to that of rank {clocks[0].reference}, or "
            f"what does contradicts itself{by_length}"
        )
    if wrong := [clock.rank for clock in clocks if clock.contradicts]:
        blind = any(clock.blind for clock in clocks if clock.same_host)
        sentences.append(
            f"{_named(wrong).capitalize()} and rank {clocks[0].reference} share a clock, but their "
            f"timestamps disagree by more than collectives allow{by_length if blind else '.'}"
        )
    return tuple(sentences)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_few(ranks)}"


def _few(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


@dataclass(frozen=True)
class _TeamResult:
    """One group's calls with their waits and places, and its steps."""

    work: Teamwork
    calls: pd.DataFrame
    steps: pd.DataFrame
    contradictory: int

    def mean_us(self, column: str) -> float:
        """A time of the group, as mean over its ranks."""
        return float(self.calls[column].sum()) / 1e3 / len(self.work.team.ranks)


def collectives_of(bundle: Bundle) -> tuple[Collectives, dict[int, dict[str, Any]]]:
    """What the ranks did to each other, and the share of each rank in it.

    A bundle of one rank has nothing to say here. The share is `collective_us` of its RankRow, and
    `wait_us`, `transfer_us`, `slowest_steps` and `held_up_us` where collectives were matched.
    """
    layout = layout_of(bundle)
    works = teamwork_of(bundle, layout)
    clocks = clocks_of(bundle, layout, works)
    results = [r for work in works if (r := _result(bundle, work, clocks)) is not None]
    hidden = hidden_in(bundle) if len(bundle.ranks) > 1 or layout.missing else ()
    shares: dict[int, dict[str, Any]] = {}
    if len(bundle.ranks) > 1:
        shares = {rank: {"collective_us": _in_collectives(bundle, rank)} for rank in bundle.ranks}
    for result in results:
        for rank, share in _shares(result).items():
            shares[rank] |= share
    joined = sum(len(work.matched.steps) for work in works)
    collectives = Collectives(
        matched=sum(result.calls["call"].nunique() for result in results),
        unmatched=sum(work.matched.unmatched for work in works)
        + sum(result.contradictory for result in results),
        steps=joined,
        steps_left_out=sum(work.most_steps + work.matched.unequal_steps for work in works) - joined,
        wait_us=sum(result.mean_us("wait_ns") for result in results),
        transfer_us=sum(result.mean_us("transfer_ns") for result in results),
        clocks=tuple(map(_clock_row, clocks)),
        items=_items(results),
        slow_steps=tuple(step for result in results for step in _slow_steps(result)),
        lateness=tuple(late for result in results for late in _lateness(bundle, result)),
        notes=remarks(layout, works, clocks, sum(r.contradictory for r in results), hidden),
    )
    return collectives, shares


def _result(bundle: Bundle, work: Teamwork, clocks: Sequence[RankClock]) -> _TeamResult | None:
    """None where the ranks have no collective in common."""
    mine = [clock for clock in clocks if clock.rank in work.team.ranks]
    if work.matched.calls.empty:
        return None
    calls = work.matched.calls.assign(own_start_ns=work.matched.calls["start_ns"])
    if any(clock.blind for clock in mine):
        calls, uncertain, contradictory = waits_by_length(calls), float(TIMER_NS), 0
    else:
        far = [clock for clock in mine if not clock.same_host]
        offsets = {clock.rank: clock.offset for clock in far if clock.offset is not None}
        uncertain = max((offset.uncertainty_ns for offset in offsets.values()), default=0.0)
        wrong = (abs(c.offset.ns) for c in mine if c.contradicts and c.offset)
        uncertain += max(wrong, default=0.0)
        calls, contradictory = waits_of(aligned(calls, offsets), uncertain)
    steps = slowest_of_steps(calls, uncertain)
    return _TeamResult(work, _placed(bundle, calls), steps, contradictory)


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
    collective_rows = np.flatnonzero(collective & (placed["part"] == 0).to_numpy())
    row = collective_rows[
        np.searchsorted(placed["start_ns"].to_numpy()[collective_rows], mine["own_start_ns"])
    ]
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


def _in_collectives(bundle: Bundle, rank: int) -> float:
    calls = collective_calls(bundle, rank)
    return float((calls["end_ns"] - calls["start_ns"]).sum()) / 1e3


def _lateness(bundle: Bundle, result: _TeamResult) -> Iterator[Lateness]:
    """The lateness of ranks in steps that are usual decode steps on every joined rank.

    Of all of them, and of each batch size: what one size says is not true of another.
    """
    team, joined = result.work.team, result.work.matched.steps
    columns = ["step", "phase", "start_ns", "end_ns", "decode_tokens", "decode_requests"]
    usual, lengths, sizes = np.ones(len(joined), bool), [], np.zeros(len(joined), np.int64)
    for rank in map(int, joined.columns):
        steps = bundle.frame("steps", rank, columns).set_index("step", drop=False)
        usual &= pd.Series(usual_steps(steps), steps.index).reindex(joined[rank]).to_numpy(bool)
        lengths.append((steps["end_ns"] - steps["start_ns"]).reindex(joined[rank]).to_numpy())
        sizes = steps["decode_requests"].reindex(joined[rank]).to_numpy(np.int64)
    for batch in (None, *np.unique(sizes[usual]).tolist()):
        of_batch = usual if batch is None else usual & (sizes == batch)
        if of_batch.any():
            length = float(np.median(np.max(lengths, axis=0)[of_batch]))
            named = {"batch": batch, "stage": team.stage, "replica": team.replica}
            yield from lateness_of(result.calls, np.flatnonzero(of_batch).tolist(), length, named)


def _shares(result: _TeamResult) -> dict[int, dict[str, Any]]:
    sums = result.calls.groupby("rank")[["wait_ns", "transfer_ns"]].sum() / 1e3
    named = result.steps.groupby("slowest")["held_up_ns"].agg(["size", "sum"])
    named = named.reindex(sums.index, fill_value=0)
    shares = sums.set_axis(["wait_us", "transfer_us"], axis=1).assign(
        slowest_steps=named["size"],
        held_up_us=named["sum"] / named["size"].clip(lower=1) / 1e3,
    )
    share_of_rank: dict[Any, Any] = shares.to_dict("index")
    return share_of_rank


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
    rows = result.steps[["slowest", "held_up_ns", "wait_ns"]].itertuples(index=False, name=None)
    return [
        SlowStep(
            step=number,
            stage=team.stage,
            replica=team.replica,
            slowest=slowest if slowest >= 0 else None,
            held_up_us=held_up / 1e3,
            wait_us=wait / 1e3,
        )
        for number, (slowest, held_up, wait) in zip(numbers.tolist(), rows, strict=True)
    ]


def _clock_row(clock: RankClock) -> ClockRow:
    figures: tuple[Any, ...] = (None, None, None, clock.met, "none")
    if offset := clock.offset:
        figures = (
            offset.ns / 1e3,
            offset.drift * 1e6,
            offset.uncertainty_ns / 1e3,
            offset.events,
            offset.basis,
        )
    return ClockRow(clock.rank, clock.reference, clock.same_host, *figures)
