"""Step time accounting: kernels + copies - overlap + gaps + residual = step time, in every step.

Kernels and copies are the durations of what the step launched; overlap is what of them ran at the
same time as each other or as what an earlier step launched, so that unions of steps add up to the
union over the window; gaps are the parts of the step's window in which nothing ran. The residual is
what the device's time line and the step's window disagree about: kernels of another step or of none
inside the window, or its own outside. All of it is in integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import BLOCK, Integers, ascends, copies_in, of_blocks, positions
from spark_prof.analyzers.token_time import (
    Headline,
    TokenTime,
    given_tokens,
    headline_of,
    that_count,
    token_times,
)
from spark_prof.arrays import Int64s, exact
from spark_prof.vocabulary import PHASES


@dataclass(frozen=True)
class Spread:
    """Median, 99th percentile and mean of one quantity over steps, in microseconds."""

    median: float
    p99: float
    mean: float


@dataclass(frozen=True)
class FirstUse:
    """A step whose time is that of compiling or loading a kernel."""

    step: int
    phase: str
    us: float
    certain: bool  # later steps like it are fast; else none was like it


@dataclass(frozen=True)
class Steps:
    """Engine iterations of the analyzed window."""

    count: int
    prefill: int
    decode: int
    mixed: int
    tokens: int  # tokens that the requests received
    scheduled_tokens: int  # tokens that the steps computed: prompts, generated tokens and drafts
    prompt_tokens: int
    decode_us: Spread | None
    prefill_us: Spread | None
    mixed_us: Spread | None
    # The decode steps over the tokens that a sequence gets of them; `mean` is time over tokens.
    tpot_us: Spread | None
    host_gap_us: Spread | None
    """Time inside a decode step in which nothing ran (any step, where no step decodes)."""
    unknown: int = 0  # steps of which nothing tells what they worked on
    unknown_us: Spread | None = None
    left_out: int = 0  # recorded steps that count nowhere, because a clock was set while they ran
    token: TokenTime | None = None  # over all steps that decode; None where none does
    batches: tuple[TokenTime, ...] = ()  # by batch size
    # Steps that use a kernel for the first time, and count in no time of a step or a token.
    first_uses: int = 0
    first_use_steps: tuple[FirstUse, ...] = ()
    preemptions: int = 0  # requests that had to leave the full KV cache
    recomputed_tokens: int = 0  # that were computed again after that
    recomputed_share: float = 0.0  # of the tokens that mixed steps read, those computed again

    @property
    def headline_and_screen(self) -> Headline | None:
        """The time that is told first, and the batch size that a screen is of."""
        return headline_of(self.token, self.batches)

    @property
    def headline(self) -> TokenTime | None:
        """The time of a token that is told first; None where no step decodes."""
        headline = self.headline_and_screen
        return headline.time if headline else None

    @property
    def screen_batch(self) -> int | None:
        """Requests that decode in the steps that parts and findings are of; None for any number."""
        headline = self.headline_and_screen
        return headline.screen.batch if headline else None

    def us_per_token(self, decode_us: float) -> float | None:
        """What that much time of all decode steps is in each token of a sequence, None if unknown.

        A step gives each sequence one token, with speculative decoding more.
        """
        per_step = self.token.steps_per_token if self.token else None
        if self.token is None and self.tpot_us and self.decode_us and self.decode_us.median:
            per_step = self.tpot_us.median / self.decode_us.median
        if not self.decode or per_step is None:
            return None
        return decode_us / self.decode * per_step


def step_times(windows: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The windows with their times, of which `step_time.StepSums` has the sums.

    Args:
        kernels: kind, step, start_ns and end_ns of every kernel and copy of the rank.
    """
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    step = positions(windows.index.to_numpy(), kernels["step"].to_numpy())
    copies = copies_in(kernels)
    begin, finish = windows["begin_ns"].to_numpy(), windows["finish_ns"].to_numpy()
    covered = covered_in(start, end, begin, finish)
    steps = (step, np.where(copies, np.int32(-1), step)) if copies.any() else (step,)
    everything, *kernels_only = (length_by_group(start, end, of, len(windows)) for of in steps)
    busy, *kernels_union = (union_by_group(start, end, of, len(windows)) for of in steps)
    (kernels_ns,), (union,) = kernels_only or (everything,), kernels_union or (busy,)
    length = finish - begin
    gap = length - covered
    return windows.assign(
        step_us=length / 1e3,
        kernels_us=kernels_ns / 1e3,
        union_us=union / 1e3,
        copies_us=(everything - kernels_ns) / 1e3,
        overlap_us=(everything - busy) / 1e3,
        gap_us=gap / 1e3,
        residual_us=(length - busy - gap) / 1e3,
        engine_us=windows["engine_ns"] / 1e3,
    )


def spread(values: pd.Series) -> Spread | None:
    """Median, 99th percentile and mean; None of nothing."""
    measured = values.dropna()
    if measured.empty:
        return None
    median = exact(float(measured.median()))
    return Spread(median, float(measured.quantile(0.99)), float(measured.mean()))


def steps_of(steps: pd.DataFrame, timed: pd.DataFrame | None = None) -> Steps:
    """The steps, without times where nothing accounts for them.

    Args:
        steps: of `step_times`; where it has `first_use`, those count in no time of a step.
        timed: the steps that were only timed, for the time of a token.
    """
    if "step_us" not in steps:
        steps = steps.assign(step_us=np.nan, gap_us=np.nan)
    usual = that_count(steps)
    of = {phase: usual[usual["phase"].astype(str) == phase] for phase in PHASES}
    counts: dict[str, Any] = {p: int((steps["phase"].astype(str) == p).sum()) for p in PHASES}
    spreads: dict[str, Any] = {f"{p}_us": spread(rows["step_us"]) for p, rows in of.items()}
    decode, prompt_tokens = of["decode"], int(steps["prefill_tokens"].sum())
    whole, sizes = token_times(steps, timed)
    return Steps(
        count=len(steps),
        tokens=int(steps["output_tokens"].fillna(steps["decode_requests"]).sum()),
        scheduled_tokens=int(prompt_tokens + steps["decode_tokens"].sum()),
        prompt_tokens=prompt_tokens,
        tpot_us=_tpot(decode, spreads["decode_us"]),
        host_gap_us=spread((decode if len(decode) else usual)["gap_us"]),
        token=whole,
        batches=sizes,
        first_uses=len(steps) - len(usual),
        first_use_steps=_first_uses(steps),
        recomputed_share=_sum_of(of["mixed"], "recomputed_tokens")
        / max(int(of["mixed"]["prefill_tokens"].sum()), 1),
        preemptions=_sum_of(steps, "preempted"),
        recomputed_tokens=_sum_of(steps, "recomputed_tokens"),
        **counts,
        **spreads,
    )


def _sum_of(steps: pd.DataFrame, column: str) -> int:
    return int(steps[column].sum()) if column in steps else 0


def _tpot(decode: pd.DataFrame, took: Spread | None) -> Spread | None:
    """The spread of a step over the mean number of tokens: no statistic of quotients."""
    sequences, tokens = given_tokens(decode)
    if took is None or not tokens.sum():
        return None
    per_step = float(sequences.sum() / tokens.sum())
    us = float((decode["step_us"].to_numpy(np.float64) * sequences).sum() / tokens.sum())
    return Spread(took.median * per_step, took.p99 * per_step, us)


def _first_uses(steps: pd.DataFrame) -> tuple[FirstUse, ...]:
    if "first_use" not in steps:
        return ()
    columns = ["step", "phase", "step_us", "first_use_sure"]
    rows = steps.loc[steps["first_use"].to_numpy(bool), columns].itertuples(index=False, name=None)
    return tuple(FirstUse(int(n), str(p), float(us), bool(sure)) for n, p, us, sure in rows)


def length_by_group(start: Int64s, end: Int64s, group: Integers, groups: int) -> Int64s:
    """Sum of the lengths of the intervals of each group; below 0 is none."""
    return _sums(lambda block: end[block] - start[block], group, groups)


def _sums(values_of: Callable[[slice], Int64s], group: Integers, groups: int) -> Int64s:
    """Sum of each group, of values that are made a block at a time; below 0 is none."""

    def of_block(block: slice) -> tuple[Integers, Int64s]:
        values, of = values_of(block), group[block]
        # Rows of one group mostly stand together.
        first = np.append(0, np.flatnonzero(of[1:] != of[:-1]) + 1)
        return of[first], np.add.reduceat(values, first)

    sums = np.zeros(groups + 1, np.int64)  # the last one is of none
    for of, added in of_blocks(len(group), of_block):
        np.add.at(sums, np.maximum(of, -1), added)
    return sums[:-1]


def union_by_group(start: Int64s, end: Int64s, group: Integers, groups: int) -> Int64s:
    """What the intervals of each group add to the union of all intervals.

    An instant in which several ran counts once, for the group of the one that began first: what all
    groups add is the union over the whole time, however much groups overlap each other. A group
    below 0 is none.
    """
    if not ascends(start):
        order = np.argsort(start, kind="stable")
        start, end, group = start[order], end[order], group[order]
    sweep = _Sweep(start, end, None if group.min(initial=0) >= 0 else group)
    return _sums(lambda block: sweep.added(block)[1], group, groups)


def covered_in(start: Int64s, end: Int64s, begin: Int64s, finish: Int64s) -> Int64s:
    """How much of each window [begin, finish] is covered by any interval."""
    if not len(start):
        return np.zeros(len(begin), np.int64)
    if not ascends(start):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    moments = np.concatenate([begin, finish])
    last = np.searchsorted(start, moments, side="right") - 1
    by_row = np.argsort(last, kind="stable")
    by_row = by_row[np.searchsorted(last[by_row], 0) :]
    sweep = _Sweep(start, end)
    covered = np.zeros(len(moments), np.int64)

    def of_block(block: slice) -> int:
        reached, added = sweep.added(block)
        union = np.cumsum(added)
        mine = by_row[slice(*np.searchsorted(last[by_row], [block.start, block.stop]))]
        row = last[mine] - block.start
        # All up to this row began before the moment: what lasts longer than it is one stretch.
        covered[mine] = union[row] - np.maximum(reached[row] - moments[mine], 0)
        return int(union[-1])

    before = np.append(0, np.cumsum(of_blocks(len(start), of_block), dtype=np.int64))
    covered[by_row] += before[last[by_row] // BLOCK]
    of_windows: Int64s = covered[len(begin) :] - covered[: len(begin)]
    return of_windows


class _Sweep:
    """What each of ascending intervals adds to the union of those before it, a block at a time.

    Args:
        group: intervals whose group is below 0 take no part; None if all do.
    """

    def __init__(self, start: Int64s, end: Int64s, group: Integers | None = None) -> None:
        self._start, self._end, self._group = start, end, group
        latest = of_blocks(len(start), lambda block: self._ends(block).max())
        self._before = np.append(_NEVER, np.maximum.accumulate(np.array(latest, np.int64)))

    def _ends(self, block: slice) -> Int64s:
        if self._group is None:
            return self._end[block]
        return np.where(self._group[block] >= 0, self._end[block], _NEVER)

    def added(self, block: slice) -> tuple[Int64s, Int64s]:
        """How far all intervals up to each of the block reach, and what each of it adds."""
        ends = self._ends(block)
        reached = np.maximum.accumulate(ends)
        before = self._before[block.start // BLOCK]
        np.maximum(reached, before, out=reached)
        since = self._start[block].copy()
        since[0] = max(since[0], before)
        np.maximum(since[1:], reached[:-1], out=since[1:])
        added = np.where(ends > since, ends, since)
        added -= since
        return reached, added


_NEVER = np.int64(np.iinfo(np.int64).min)  # before any time
