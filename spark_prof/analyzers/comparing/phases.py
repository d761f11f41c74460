"""Compares the steps of one phase, those of the same size weighted as on side a."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import pandas as pd

from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    ContextEffect,
    PhaseComparison,
    SizeRow,
)
from spark_prof.analyzers.comparing.noise import (
    FEWEST_STEPS,
    Change,
    Figure,
    change,
    figure_of,
    stretch_of,
)
from spark_prof.analyzers.comparing.parts import (
    conversions_figure,
    kernel_parts,
    layer_parts,
    step_parts,
    taken_apart,
    typical_figure,
)
from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.analyzers.token_time import tokens_per_sequence
from spark_prof.arrays import Floats, Int64s

Sides = tuple[tuple[ComparedRecording, ...], tuple[ComparedRecording, ...]]
"""Recordings of the reference and the other."""

SIZES = {"decode": "decode_requests", "prefill": "prefill_tokens", "unknown": ""}
"""The column that says how large a step of each phase is; steps of unknown phase have no size."""

_MOST_SIZES = 16


@dataclass(frozen=True, eq=False)
class PhaseSteps:
    """The steps of one phase of one recording, as places in order."""

    side: ComparedRecording
    sizes: dict[int, Int64s]  # by requests that decode, or prompt tokens; 0 where nothing tells
    # Those that are compared, by size, each with its share in the comparison.
    groups: tuple[tuple[Int64s, float], ...]
    divisor: Floats  # what the time of each step of the recording is divided by

    @property
    def whole(self) -> Int64s:
        """The places of all steps of the phase."""
        return np.sort(np.concatenate(list(self.sizes.values())))

    @property
    def compared(self) -> Int64s:
        """The places of the steps that are compared."""
        return np.concatenate([places for places, _ in self.groups])

    def column(self, name: str) -> Floats:
        """A column of every step of the recording."""
        return self.side.steps[name].to_numpy(np.float64)

    def median(self, places: Int64s) -> Figure:
        """The median time of some steps."""
        us = self.column("step_us") / self.divisor
        return figure_of(us[places], "median", self.side.start)

    def matched(
        self, us: Floats, statistic: str = "median", tokens: Floats | None = None
    ) -> Figure:
        """A statistic of such a time of every step, over those of the same sizes.

        Args:
            tokens: how many tokens each step gave a sequence, if the time is to be a token's.
        """
        us = us / self.divisor
        figures = [
            (
                figure_of(us[places], statistic, self.side.start)
                if tokens is None
                else _per_token(us[places], tokens[places], statistic, self.side.start),
                weight,
            )
            for places, weight in self.groups
        ]
        return Figure(
            value=sum(weight * figure.value for figure, weight in figures),
            error=sum((weight * figure.error) ** 2 for figure, weight in figures) ** 0.5,
            free=min(figure.free for figure, _ in figures),
            start=sum(weight * figure.start for figure, weight in figures),
        )


def _per_token(us: Floats, tokens: Floats, statistic: str, start: float) -> Figure:
    """A statistic of steps over the mean number of their tokens: never one of quotients."""
    mean = float(tokens.mean())
    if (tokens == tokens[0]).all():
        return figure_of(us / mean, statistic, start)
    if statistic == "mean":
        # What a step adds to the quotient of the sums: its mean is that quotient, its noise too.
        whole = float(us.sum() / tokens.sum())
        return figure_of(whole + (us - whole * tokens) / mean, statistic, start)
    step, token_count = figure_of(us / mean, statistic, start), figure_of(tokens, "mean", 0.0)
    error = float(np.hypot(step.error, step.value * token_count.error / mean))
    return replace(step, error=error, free=min(step.free, token_count.free))


@dataclass(frozen=True, eq=False)
class MatchingSteps:
    """The steps of one phase of both sides."""

    a: tuple[PhaseSteps, ...]
    b: tuple[PhaseSteps, ...]
    sizes: tuple[SizeRow, ...]  # every size that occurs, those that most of a's steps have first
    shares_sizes: bool  # whether any size is in all recordings; else all steps are one group
    unit: str  # "step", "prompt token", or "recording" where nothing tells the steps of a side

    @property
    def fewest(self) -> int:
        """Steps that are compared of the recording that has the fewest."""
        return min(len(steps.compared) for steps in (*self.a, *self.b))

    def change(self, figure: Callable[[PhaseSteps], Figure]) -> Change:
        """The change of a figure that each recording has."""
        return change(map(figure, self.a), map(figure, self.b))


def matching_steps(sides: Sides, phase: str) -> MatchingSteps | None:
    """The steps of a phase, the 16 sizes in all recordings that most have; None without any.

    A size of which a recording has too few steps for an error is left out where another has enough.
    """
    sizes = [[_by_size(recording.steps, phase) for recording in side] for side in sides]
    every = [*sizes[0], *sizes[1]]
    if not all(every):
        return None

    def number(size: int, side: Sequence[dict[int, Int64s]]) -> int:
        return sum(len(by_size.get(size, ())) for by_size in side)

    counts = {
        size: (number(size, sizes[0]), number(size, sizes[1])) for size in set().union(*every)
    }
    ranked = sorted(counts, key=lambda size: (-counts[size][0], -counts[size][1], size))
    shared = [size for size in ranked if all(size in by_size for by_size in every)]
    enough = [s for s in shared if min(len(by_size[s]) for by_size in every) >= FEWEST_STEPS]
    shared = (enough or shared)[:_MOST_SIZES]
    steps = sum(counts[size][0] for size in shared)
    # Prompts of other lengths are comparable by the token only.
    by_token = phase == "prefill" and not shared

    def steps_of(side: ComparedRecording, by_size: dict[int, Int64s]) -> PhaseSteps:
        tokens = side.steps["prefill_tokens"].to_numpy(np.float64)
        divisor = np.maximum(tokens, 1.0) if by_token else np.ones(len(tokens))
        groups = tuple((by_size[size], counts[size][0] / steps) for size in shared)
        phase_steps = PhaseSteps(side, by_size, groups, divisor)
        if groups:
            return phase_steps
        return PhaseSteps(side, by_size, ((phase_steps.whole, 1.0),), divisor)

    a, b = (tuple(map(steps_of, *pair)) for pair in zip(sides, sizes, strict=True))

    def row(size: int) -> SizeRow:
        median = None
        if all(size in by_size for by_size in every):
            medians = (
                [phase_steps.median(phase_steps.sizes[size]) for phase_steps in side]
                for side in (a, b)
            )
            median = change(*medians)
        weight = counts[size][0] / steps if size in shared else 0.0
        return SizeRow(size, *counts[size], weight, median)

    tells_steps = all(recording.report.run.tells_steps for side in sides for recording in side)
    unit = "prompt token" if by_token else "step" if tells_steps else "recording"
    return MatchingSteps(a, b, tuple(map(row, ranked)), bool(shared), unit)


def _by_size(steps: pd.DataFrame, phase: str) -> dict[int, Int64s]:
    chosen = steps["phase"].astype(str).to_numpy() == phase
    if "first_use" in steps and (usual := chosen & ~steps["first_use"].to_numpy(bool)).any():
        chosen = usual
    places = np.flatnonzero(chosen)
    if not SIZES[phase]:
        return {0: places} if len(places) else {}
    size = steps[SIZES[phase]].to_numpy(np.int64)[places]
    return {int(number): places[size == number] for number in np.unique(size)}


def token_figure(steps: PhaseSteps, statistic: str = "median") -> Figure:
    """The time of a sequence's token: the steps' over the tokens that they give a sequence."""
    tokens = tokens_per_sequence(steps.side.steps)
    return steps.matched(steps.column("step_us"), statistic, np.where(tokens > 0, tokens, 1.0))


def _step_tokens(side: Sequence[PhaseSteps]) -> float:
    """How many tokens a step gives a sequence, each size of steps by its share."""

    def mean(steps: PhaseSteps) -> float:
        tokens = tokens_per_sequence(steps.side.steps)
        tokens = np.where(tokens > 0, tokens, 1.0)
        return float(sum(weight * tokens[places].mean() for places, weight in steps.groups))

    return fmean(map(mean, side))


def _context_tokens(matching: MatchingSteps) -> tuple[float, float]:
    """Tokens in the KV cache in a step of each side, each size of steps by its share."""

    def mean(steps: PhaseSteps) -> float:
        tokens = steps.column("context_tokens")
        return float(sum(weight * tokens[places].mean() for places, weight in steps.groups))

    return fmean(map(mean, matching.a)), fmean(map(mean, matching.b))


_FEWEST_STEPS = 16
_DIFFERENT = 0.01  # contexts that differ by a smaller share are alike


def context_effect(matching: MatchingSteps) -> ContextEffect | None:
    """How much of the difference the contexts explain; None where they do not differ.

    Within each recording contexts grow while nothing else changes: the slope of the steps' times,
    by least squares over the middle half of the steps of the largest group.
    """
    tokens_a, tokens_b = _context_tokens(matching)
    extra_tokens = tokens_b - tokens_a
    if not tokens_a or abs(extra_tokens) < _DIFFERENT * tokens_a:
        return None
    sizes = [row for row in matching.sizes if row.weight]
    largest = max(sizes, key=lambda row: min(row.steps_a, row.steps_b)).size
    slopes = [
        [_slope(steps, steps.sizes[largest]) for steps in side] for side in (matching.a, matching.b)
    ]
    # Both sides count the same, however many recordings each has.
    each_side = [(slope, 2 * len(side)) for side in slopes for slope in side]
    estimates = [(*slope, count) for slope, count in each_side if slope is not None]
    if len(estimates) < len(each_side):
        return None
    slope = sum(value / count for value, _, _, count in estimates)
    error = sum((error / count) ** 2 for _, error, _, count in estimates) ** 0.5
    free = min(free for _, _, free, _ in estimates)
    wide = student_quantile(0.975, max(int(free), 2)) * error
    ends = sorted((extra_tokens * (slope - wide), extra_tokens * (slope + wide)))
    return ContextEffect(tokens_a, tokens_b, slope, extra_tokens * slope, *ends)


def _slope(steps: PhaseSteps, places: Int64s) -> tuple[float, float, float] | None:
    """Us a token, its standard error and degrees of freedom; None of too few or equal contexts."""
    tokens, us = steps.column("context_tokens")[places], steps.column("step_us")[places]
    order = np.argsort(us, kind="stable")
    cut = len(us) // 10
    middle = np.sort(order[cut : len(us) - cut])
    tokens, us = tokens[middle], us[middle]
    spread = float(((tokens - tokens.mean()) ** 2).sum())
    if len(us) < _FEWEST_STEPS or not spread:
        return None
    slope = float(((tokens - tokens.mean()) * (us - us.mean())).sum()) / spread
    left = us - us.mean() - slope * (tokens - tokens.mean())
    # Neighbours that are alike count as one.
    free = max(len(us) / stretch_of(left) - 2, 1.0)
    variance = float((left**2).sum()) / free / spread
    return slope, variance**0.5, free


def compare_phase(
    sides: Sides, names: tuple[Sequence[Int64s], Sequence[Int64s]], phase: str
) -> PhaseComparison | None:
    """The comparison of one phase; None where a recording has no such step.

    Args:
        names: of each recording, for each of its kernels' names the place of its stable name.
    """
    matching = matching_steps(sides, phase)
    if matching is None:
        return None
    decode = phase == "decode"
    like = matching.change(lambda steps: steps.matched(steps.column("step_us")))
    one_size = matching.shares_sizes and len(matching.sizes) == 1
    whole = like if one_size else matching.change(lambda steps: steps.median(steps.whole))
    a, b = (
        [
            taken_apart(steps.side, stable, steps.groups, steps.divisor)
            for stable, steps in zip(*pair, strict=True)
        ]
        for pair in zip(names, (matching.a, matching.b), strict=True)
    )
    typical = change(map(typical_figure, a), map(typical_figure, b))
    return PhaseComparison(
        phase=phase,
        unit=matching.unit,
        whole=whole,
        like=like,
        mix_us=whole.us - like.us,
        sizes=matching.sizes,
        alike=matching.shares_sizes,
        fewest=matching.fewest,
        typical=typical,
        parts=step_parts(a, b),
        residual_us=like.us - typical.us,
        conversions=change(map(conversions_figure, a), map(conversions_figure, b)),
        layers=layer_parts(a, b, whole=True),
        layer_parts=layer_parts(a, b),
        kernels=kernel_parts(a, b),
        context=context_effect(matching) if decode and matching.shares_sizes else None,
        context_tokens=_context_tokens(matching) if decode else (0.0, 0.0),
        step_tokens=(_step_tokens(matching.a), _step_tokens(matching.b)) if decode else (1.0, 1.0),
        token=matching.change(token_figure) if decode else None,
    )
