"""Lays sampled stacks on the time in which no kernel ran."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from spark_prof.analyzers.host.host_rows import FlameFrame, HostCode, HostFunction, HostStage
from spark_prof.analyzers.step_accounting import covered_in
from spark_prof.arrays import Flags, Int64s
from spark_prof.rules import thresholds
from spark_prof.rules.host_stages import STAGES, WAITS, stage_of
from spark_prof.traces.readers.py_spy import frames_of

FEWEST = thresholds.HOST_SAMPLES.value
_MOST_FUNCTIONS = 40
_MOST_FRAMES = 400
_OWN_SHARE = 0.02  # of the samples in gaps that a function does not pass on to one callee
_LEAST_FRAME = 0.004  # of the samples in gaps: narrower ones cannot be seen in a figure
_WITHIN_PERIODS = 8  # so many usual intervals without a look: py-spy was not looking
Frame = tuple[str, str]
Stack = Sequence[Frame]


@dataclass(frozen=True, eq=False)
class Gaps:
    """Merged times in which something ran, and the windows of steps around them; all in ns."""

    start: Int64s  # of what ran, ascending, and apart from each other
    end: Int64s
    begin: Int64s  # of each step's window, ascending
    finish: Int64s
    first: Int64s  # of each window the first start of something in it, its finish if nothing ran
    last: Int64s  # and the last end, its begin if nothing ran

    @classmethod
    def of(cls, kernels: pd.DataFrame, steps: pd.DataFrame) -> Gaps:
        """The gaps between kernels and copies, in windows with `begin_ns` and `finish_ns`."""
        start, end = (kernels[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum(end, start)[order]
        reached = np.maximum.accumulate(end) if len(end) else end
        later = np.flatnonzero(start[1:] > reached[:-1]) + 1
        opens: Int64s = np.append(np.zeros(min(len(start), 1), np.int64), later)
        merged = start[opens]
        merged_end = np.append(reached[opens[1:] - 1], reached[-1:]) if len(opens) else reached
        begin, finish = (steps[name].to_numpy(np.int64) for name in ("begin_ns", "finish_ns"))
        after = np.searchsorted(merged_end, begin, side="right")
        before = np.searchsorted(merged, finish, side="left") - 1
        none = after > before
        place = np.clip(after, 0, max(len(merged) - 1, 0))
        until = np.clip(before, 0, max(len(merged) - 1, 0))
        if not len(merged):
            return cls(merged, merged_end, begin, finish, finish, begin)
        first = np.where(none, finish, np.maximum(merged[place], begin))
        last = np.where(none, begin, np.minimum(merged_end[until], finish))
        return cls(merged, merged_end, begin, finish, first, last)

    def idle_ns(self, begin: Int64s, finish: Int64s) -> Int64s:
        """How long nothing ran in each of these times."""
        finish = np.maximum(begin, finish)
        idle: Int64s = finish - begin - covered_in(self.start, self.end, begin, finish)
        return idle

    def around(self, times: Int64s) -> tuple[Int64s, Int64s, Flags]:
        """The idle time around each moment as begin and end, and whether it is one of a step."""
        window = np.searchsorted(self.begin, times, side="right") - 1
        placed = window >= 0
        inside = placed & (times < self.finish[np.maximum(window, 0)])
        place = np.searchsorted(self.start, times, side="right") - 1
        far = np.iinfo(np.int64)
        ends = np.append(self.end, far.min)[place]  # of the last that began before, none for -1
        ends = np.where(place >= 0, ends, far.min)
        follows = np.append(self.start, far.max)[place + 1]
        return ends, follows, np.asarray(inside & (times >= ends))


def interval_of(part: int, whole: int) -> tuple[float, float]:
    """The 95 % interval of a share of independent samples (Wilson)."""
    if not whole:
        return 0.0, 1.0
    z, share = 1.96, part / whole
    middle = share + z * z / (2 * whole)
    half = z * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    return max((middle - half) / (1 + z * z / whole), 0.0), (middle + half) / (1 + z * z / whole)


def stacks_of(samples: pd.DataFrame, rank: str, engine: str) -> pd.DataFrame:
    """One stack a moment: of the worker's first thread, or of the scheduler's while it waits.

    Args:
        samples: of the table `stacks`.
        rank: the worker, as `process` names it; `engine` the same of its scheduler.
    """
    main = samples[samples["main"].to_numpy(bool)]
    process = main["process"].astype(str).to_numpy()
    columns = ["time_ns", "error_ns", "stack"]
    worker = main.loc[process == rank, columns].drop_duplicates("time_ns")
    scheduler = main.loc[process == engine, columns].drop_duplicates("time_ns")
    if worker.empty or engine == rank or scheduler.empty:
        alone: pd.DataFrame = (scheduler if worker.empty else worker).reset_index(drop=True)
        return alone
    waits = {text for text in worker["stack"].unique() if stage_of(frames_of(text)) in WAITS}
    both = worker.merge(scheduler[["time_ns", "stack"]], "left", "time_ns", suffixes=("", "_other"))
    waiting = both["stack"].isin(waits).to_numpy() & both["stack_other"].notna().to_numpy()
    texts = both["stack"].astype(str).to_numpy(object)
    texts[waiting] = both["stack_other"].astype(str).to_numpy(object)[waiting]
    joined: pd.DataFrame = both[["time_ns", "error_ns"]].assign(stack=pd.Categorical(texts))
    return joined


def host_code(stacks: pd.DataFrame, gaps: Gaps) -> HostCode:
    """What code ran in the gaps, of stacks with one row a moment."""
    times = stacks["time_ns"].to_numpy(np.int64)
    error = stacks["error_ns"].to_numpy(np.int64)
    opened, closed, in_gap = gaps.around(times)
    sure = in_gap & (times - error >= opened) & (times + error <= closed)
    texts = stacks["stack"].astype(str)
    counts = Counter(texts.to_numpy(object)[in_gap].tolist())
    frames = {text: frames_of(text) for text in texts.unique()}
    stages = {text: stage_of(stack) for text, stack in frames.items()}
    everywhere = Counter(texts.map(stages).tolist())
    total, steps = sum(counts.values()), max(len(gaps.begin), 1)
    gap_ns = gaps.idle_ns(gaps.begin, gaps.finish)
    inside_ns = gaps.idle_ns(gaps.first, gaps.last)
    gap_us = float(gap_ns.sum()) / 1e3 / steps
    by_stage = _stages(counts, stages, everywhere, gap_us)
    unknown = sum(count for text, count in counts.items() if stages[text] == "other")
    enough = total >= FEWEST
    return HostCode(
        rounds=len(stacks),
        gap_samples=total,
        gap_us=gap_us,
        inside_us=float(inside_ns.sum()) / 1e3 / steps,
        between_us=float((gap_ns - inside_ns).sum()) / 1e3 / steps,
        steps=len(gaps.begin),
        covered=_covered(times, gaps),
        sure=float(sure.sum()) / total if total else 0.0,
        unknown=unknown / total if total else 0.0,
        error_us=float(np.median(error)) / 1e3 if len(error) else 0.0,
        enough=enough,
        stages=by_stage if enough else (),
        functions=_functions(counts, frames, stages, gap_us) if enough else (),
        flame=flame_of(counts, frames) if enough else (),
    )


def _covered(times: Int64s, gaps: Gaps) -> float:
    """The share of the idle time of steps in which looks follow each other as they usually do."""
    times = np.unique(times)
    whole = int(gaps.idle_ns(gaps.begin, gaps.finish).sum())
    if len(times) < 2 or not whole:
        return 0.0
    apart = np.diff(times)
    looking = apart <= _WITHIN_PERIODS * np.median(apart)
    begins, ends = times[:-1][looking], times[1:][looking]
    # Idle time of the steps alone: of each window what the looking times have of it.
    edges = np.sort(np.concatenate([gaps.begin, gaps.finish]))
    cuts = np.unique(np.concatenate([times, edges]))
    left, right = cuts[:-1], cuts[1:]
    middle = left + (right - left) // 2
    watched = _within(middle, begins, ends) & _within(middle, gaps.begin, gaps.finish)
    return float(gaps.idle_ns(left[watched], right[watched]).sum()) / whole


def _within(times: Int64s, begins: Int64s, ends: Int64s) -> Flags:
    place = np.searchsorted(begins, times, side="right") - 1
    return np.asarray((place >= 0) & (times < ends[np.maximum(place, 0)]))


def _stages(
    counts: Mapping[str, int], stages: Mapping[str, str], everywhere: Counter[str], gap_us: float
) -> tuple[HostStage, ...]:
    of_stage: Counter[str] = Counter()
    for text, count in counts.items():
        of_stage[stages[text]] += count
    total, all_samples = sum(counts.values()), max(sum(everywhere.values()), 1)
    rows = [
        HostStage(
            stage, of_stage[stage], of_stage[stage] / total, *interval_of(of_stage[stage], total),
            gap_us * of_stage[stage] / total, everywhere[stage] / all_samples,
        )
        for stage in STAGES
        if total and (of_stage[stage] or everywhere[stage])
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.samples))


def _functions(
    counts: Mapping[str, int],
    frames: Mapping[str, Stack],
    stages: Mapping[str, str],
    gap_us: float,
) -> tuple[HostFunction, ...]:
    innermost: Counter[Frame] = Counter()
    inclusive: Counter[Frame] = Counter()
    callees: dict[Frame, Counter[Frame]] = {}
    by_stage: dict[Frame, Counter[str]] = {}
    for text, count in counts.items():
        stack = frames[text]
        for frame in dict.fromkeys(stack):
            inclusive[frame] += count
            by_stage.setdefault(frame, Counter())[stages[text]] += count
        for caller, callee in dict.fromkeys(pairwise(stack)):
            callees.setdefault(caller, Counter())[callee] += count
        innermost[stack[-1]] += count
    total = sum(counts.values())

    def passed_on(frame: Frame) -> int:
        """The samples of the callee with most of them: a function that only calls says nothing."""
        return max(callees.get(frame, Counter()).values(), default=0)

    rows = [
        HostFunction(
            frame[1], frame[0], by_stage[frame].most_common(1)[0][0], innermost[frame], count,
            count / total, *interval_of(count, total), gap_us * count / total,
        )
        for frame, count in inclusive.most_common()
        if count - passed_on(frame) > _OWN_SHARE * total
    ]  # fmt: skip
    return tuple(rows[:_MOST_FUNCTIONS])


def flame_of(counts: Mapping[str, int], frames: Mapping[str, Stack]) -> tuple[FlameFrame, ...]:
    """The tree of all calls, without branches too narrow to be seen; the widest first."""
    sums: Counter[tuple[tuple[str, str], ...]] = Counter()
    for text, count in counts.items():
        stack = tuple(frames[text])
        for depth in range(1, len(stack) + 1):
            sums[stack[:depth]] += count
    least = _LEAST_FRAME * sum(counts.values())
    # A caller has as many samples as what it calls, and is shorter.
    wide = sorted(sums, key=lambda path: (-sums[path], len(path)))[:_MOST_FRAMES]
    rows: dict[tuple[tuple[str, str], ...], int] = {}
    flame: list[FlameFrame] = []
    for path in wide:
        if sums[path] >= least and (len(path) == 1 or path[:-1] in rows):
            rows[path] = len(flame)
            flame.append(FlameFrame(rows.get(path[:-1], -1), path[-1][1], path[-1][0], sums[path]))
    return tuple(flame)
