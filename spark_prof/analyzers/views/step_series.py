"""The steps of a recording as plain columns: when each ran, how long, on what it worked.

And what is read from them: times by batch, what more context costs, who held other ranks up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.model import SlowStep
from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.arrays import Flags, Floats, Int64s
from spark_prof.vocabulary import PHASES


def thinned(
    along: npt.NDArray[np.number[Any]], value: npt.NDArray[np.number[Any]], most: int
) -> Int64s:
    """Places of at most that many points to draw, 2 or more, in order of where they stand `along`.

    Of each stretch of as many points these are the lowest and the highest.
    """
    order = np.argsort(along, kind="stable").astype(np.int64)
    if len(order) <= most:
        return order
    stretch = np.arange(len(order)) * (most // 2) // len(order)
    extremes = pd.Series(value[order]).groupby(stretch).agg(["idxmin", "idxmax"])
    places: Int64s = order[np.unique(extremes.to_numpy())]
    return places


_SLOW = 1.5  # times the median of its like from which on a step is slow
_FEWEST = 8  # steps of a kind below which none of them is called slow


@dataclass(frozen=True)
class StepSeries:
    """One entry a step, in order of begin; the arrays have one length."""

    step: Int64s
    phase: npt.NDArray[np.int8]  # place in vocabulary.PHASES
    begin_s: Floats  # seconds since the first step began
    us: Floats
    requests: Int64s
    prompt_tokens: Int64s
    # Tokens in the KV cache before it, of a mean request; -1 where unknown.
    context: Floats
    # Whether it took 1.5 times the median of steps of its phase and size.
    slow: Flags

    def __len__(self) -> int:
        return len(self.step)

    def of(self, phase: str) -> Int64s:
        """Places of the steps of that phase."""
        return np.flatnonzero(self.phase == PHASES.index(phase))


@dataclass(frozen=True)
class BatchTimes:
    """How long decode steps of one size took."""

    requests: int
    steps: int
    median_us: float
    p10_us: float
    p90_us: float

    @property
    def tokens_per_s(self) -> float:
        """What all requests of a median step get, where each gets one token of it."""
        return 1e6 * self.requests / self.median_us if self.median_us else 0.0


def steps_of(table: pd.DataFrame) -> StepSeries:
    """The steps of the table that `step_accounting.step_times` returns."""
    begin = table["begin_ns"].to_numpy(np.int64)
    requests = table["decode_requests"].to_numpy(np.int64)
    prompt = table["prefill_tokens"].to_numpy(np.int64)
    phase = pd.Categorical(table["phase"].astype(str), PHASES).codes
    phase = np.where(phase < 0, PHASES.index("unknown"), phase)
    us = table["step_us"].to_numpy(np.float64)
    all_requests = requests + table["prefill_requests"].to_numpy(np.int64)
    context = table["context_tokens"].to_numpy(np.float64)
    has_context = (context >= 0) & (all_requests > 0)
    # Prompts of other lengths are not alike: only steps without any, or of the same.
    groups = pd.Series(us).groupby([phase, requests, prompt])
    has_enough = groups.transform("size").to_numpy() >= _FEWEST
    return StepSeries(
        step=table["step"].to_numpy(np.int64),
        phase=phase.astype(np.int8),
        begin_s=(begin - begin.min(initial=np.iinfo(np.int64).max)) / 1e9 if len(begin) else us,
        us=us,
        requests=requests,
        prompt_tokens=prompt,
        context=np.where(has_context, context / np.maximum(all_requests, 1), -1.0),
        slow=has_enough & (us > _SLOW * groups.transform("median").to_numpy(np.float64)),
    )


def batch_times(steps: StepSeries) -> tuple[BatchTimes, ...]:
    """Decode steps by how many requests decode in them, the smallest size first."""
    decode = steps.of("decode")
    decode = decode[steps.requests[decode] > 0]
    if not len(decode):
        return ()
    groups = pd.Series(steps.us[decode]).groupby(steps.requests[decode])
    table = groups.quantile(np.array([0.1, 0.5, 0.9])).unstack().assign(steps=groups.size())
    return tuple(
        BatchTimes(int(size), count, median, p10, p90)
        for size, p10, median, p90, count in table.itertuples(name=None)
    )


_FEWEST_TO_FIT = 20
_NARROWEST = 64.0
"""Tokens of context between the shortest and the longest step, below which nothing is fitted."""
_CONFIDENCE = 0.95
_MOST_SIZES = 8


@dataclass(frozen=True)
class ContextFit:
    """A line through the decode steps of one size; slow steps are left out."""

    requests: int
    steps: int
    shortest: float  # tokens of context of a mean request in the step with the fewest
    longest: float
    # Of a step for 1,000 tokens more of each request; None where that is not known.
    slope_us: float | None = None
    within_us: float | None = None  # half of the slope's 95 % interval; None without a slope
    # What the line says for the shortest context; None without a slope.
    at_shortest_us: float | None = None
    why_not: str = ""  # why there is no slope; empty where there is one

    def us_at(self, context: float) -> float | None:
        """What the line says for that context."""
        if self.slope_us is None or self.at_shortest_us is None:
            return None
        return self.at_shortest_us + self.slope_us * (context - self.shortest) / 1000


def context_fits(steps: StepSeries) -> tuple[ContextFit, ...]:
    """A fit for each batch size, of many sizes for those with the most steps."""
    decode = steps.of("decode")
    decode = decode[
        (steps.requests[decode] > 0) & (steps.context[decode] >= 0) & ~steps.slow[decode]
    ]
    sizes, counts = np.unique(steps.requests[decode], return_counts=True)
    most = np.sort(sizes[np.argsort(-counts, kind="stable")[:_MOST_SIZES]])
    return tuple(
        _fit(int(size), steps.context[chosen], steps.us[chosen])
        for size in most.tolist()
        for chosen in [decode[steps.requests[decode] == size]]
    )


def _fit(requests: int, context: Floats, us: Floats) -> ContextFit:
    """Least squares; its error takes into account that neighbouring steps vary together."""
    low, high, count = float(context.min()), float(context.max()), len(us)
    without = ContextFit(requests, count, low, high)
    if count < _FEWEST_TO_FIT:
        return replace(without, why_not=f"only {count} steps")
    if high - low < _NARROWEST:
        return replace(without, why_not=f"the contexts lie within {high - low:,.0f} tokens")
    centred = context - context.mean()
    squares = float(centred @ centred)
    slope = float(centred @ us) / squares
    left = us - us.mean() - slope * centred
    variance = float(left @ left)
    follows = float(left[1:] @ left[:-1]) / variance if variance else 0.0
    follows = min(max(follows, 0.0), 0.99)
    free = int(count * (1 - follows) / (1 + follows)) - 2
    if free < 2:
        return replace(without, why_not="neighbouring steps vary together too much")
    error = math.sqrt(variance / free / squares)
    within = student_quantile((1 + _CONFIDENCE) / 2, free) * error
    if within >= abs(slope):
        return replace(without, why_not="the steps scatter more than that changes them")
    return replace(
        without,
        slope_us=1000 * slope,
        within_us=1000 * within,
        at_shortest_us=float(us.mean() + slope * (low - context.mean())),
    )


_MOST_GROUPS = 60


@dataclass(frozen=True)
class HeldUp:
    """How long the others waited for each rank, in groups of neighbouring steps."""

    ranks: tuple[int, ...]
    # Of each the lowest rank of its team, whose numbers the steps have: neighbouring ranks are a
    # team.
    leads: tuple[int, ...]
    # Mean over the steps of a group, one row a rank and one column a group. The team's others
    # waited so long on average for a rank in the steps in which it came last.
    us: Floats
    last: Int64s  # in how many steps of the group the rank came last
    first_step: Int64s
    last_step: Int64s
    # Of each cell the step in which the others waited the longest, -1 for none.
    worst: Int64s


def held_up(steps: Sequence[SlowStep], ranks: Sequence[int]) -> HeldUp:
    """Sums up the steps of all teams, a row each of these ranks."""
    columns = ["stage", "replica", "step", "slowest", "held_up_us"]
    rows = ([getattr(step, name) for name in columns] for step in steps)
    table = pd.DataFrame(rows, columns=columns).sort_values("step", kind="stable")
    teams = table.groupby(["stage", "replica"])
    longest = int(teams.size().max()) if len(table) else 0
    groups = min(longest, _MOST_GROUPS)
    table["group"] = teams.cumcount() * groups // max(longest, 1)
    numbers = table.groupby("group")["step"].agg(["min", "max"]).to_numpy(np.int64)
    shape = len(ranks), groups
    total, last = np.zeros(shape), np.zeros(shape, np.int64)
    counts, worst = np.zeros(shape), np.full(shape, -1)
    # Of equally long ones the first step is written last.
    named = table[table["slowest"].isin(ranks)].sort_values(
        ["held_up_us", "step"], ascending=[True, False]
    )
    cell = pd.Index(ranks).get_indexer(pd.Index(named["slowest"])), named["group"].to_numpy()
    np.add.at(total, cell, named["held_up_us"].to_numpy())
    np.add.at(last, cell, 1)
    worst[cell] = named["step"].where(named["held_up_us"] > 0, -1)
    for _, team_steps in table.groupby(["stage", "replica"]):
        # Every rank of a team has the team's steps, whoever came last in them.
        members = np.isin(ranks, team_steps["slowest"].dropna())
        counts[members] += np.bincount(team_steps["group"], minlength=groups)
    us = total / np.maximum(counts, 1)
    size = max(len(ranks) // max(teams.ngroups, 1), 1)
    leads = tuple(ranks[place // size * size] for place in range(len(ranks)))
    return HeldUp(tuple(ranks), leads, us, last, numbers[:, 0], numbers[:, 1], worst)
