"""Step time accounting: kernels + copies - overlap + gaps + residual = step time, in every step.

Kernels and copies are the durations of what the step launched; overlap is what of them ran at the
same time as each other or as what an earlier step launched, so that unions of steps add up to the
union over the window; gaps are the parts of the step's window in which nothing ran. The residual is
what the device's time line and the step's window disagree about: kernels of another step or of none
inside the window, or its own outside. All of it is in integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import Integers, ascends, at_once, copies_in, positions
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
    # Cut down to nothing, a copy takes no part in what only kernels add up to.
    ends = (end, np.where(copies, start, end)) if copies.any() else (end,)
    covered, *summed = at_once(
        lambda: covered_in(start, end, begin, finish),
        *(partial(sum_by_group, last - start, step, len(windows)) for last in ends),
        *(partial(union_by_group, start, last, step, len(windows)) for last in ends),
    )
    everything, kernels_ns, busy, union = summed if len(ends) > 1 else np.repeat(summed, 2, axis=0)
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


def sum_by_group(took: Int64s, group: Integers, groups: int) -> Int64s:
    """Sum of each group; below 0 is none."""
    if (group < 0).any():
        took, group = took[group >= 0], group[group >= 0]
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, group, took)
    return sums


def union_by_group(start: Int64s, end: Int64s, group: Integers, groups: int) -> Int64s:
    """What the intervals of each group add to the union of all intervals.

    An instant in which several ran counts once, for the group of the one that began first: what all
    groups add is the union over the whole time, however much groups overlap each other. A group
    below 0 is none.
    """
    if (group < 0).any():
        mine = np.flatnonzero(group >= 0)
        start, end, group = start[mine], end[mine], group[mine]
    if not ascends(start):
        order = np.argsort(start, kind="stable")
        start, end, group = start[order], end[order], group[order]
    reached = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    added = np.maximum(end - np.maximum(start, reached), 0)
    return sum_by_group(added, group, groups)


def covered_in(start: Int64s, end: Int64s, begin: Int64s, finish: Int64s) -> Int64s:
    """How much of each window [begin, finish] is covered by any interval."""
    if not len(start):
        return np.zeros(len(begin), np.int64)
    if not ascends(start):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    opens = np.append(0, np.flatnonzero(start[1:] > reached[:-1]) + 1)
    merged_start = start[opens]
    merged_end = np.append(reached[opens[1:] - 1], reached[-1])
    lengths = np.append(0, np.cumsum(merged_end - merged_start))

    def covered_before(moment: Int64s) -> Int64s:
        last = np.searchsorted(merged_start, moment, side="right") - 1
        inside = np.minimum(moment, merged_end[last]) - merged_start[last]
        covered: Int64s = np.where(last >= 0, lengths[last] + inside, 0)
        return covered

    return covered_before(finish) - covered_before(begin)
