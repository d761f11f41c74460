"""The best number of drafts: the one at which a token takes least, and whether that is certain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.speculate.acceptance import Acceptance, TokensSpread, tokens_spread
from spark_prof.speculate.step_cost import (
    Fit,
    Round,
    StepCost,
    fit_line,
    measured_drafts,
    step_spread,
    step_us,
)

_ERROR = 0.05  # that an interval may miss


@dataclass(frozen=True)
class DraftCount:
    """A number of drafts at one batch size and context."""

    drafts: int
    step_us: StepCost
    break_even: StepCost | None
    """The share of the drafts that has to be accepted so that a token takes no longer than without
    drafts; above 1 it cannot pay. None of no drafts."""
    tokens: float | None = None  # that a step gives each request; None where acceptance is unknown
    token_us: float | None = None  # of each request
    speed: StepCost | None = None  # tokens a second over those without drafts


@dataclass(frozen=True)
class Best:
    """What was found at one batch size and context."""

    requests: int  # that decode in each step
    context: int  # tokens of each prompt
    rows: tuple[DraftCount, ...]
    drafts: int | None  # the best number; None where acceptance is unknown
    rivals: tuple[int, ...] = ()  # other numbers, of which the best is not certain to be faster
    fit: Fit | None = None

    @property
    def decided(self) -> bool:
        """Whether one number of drafts is faster than every other, beyond what varied."""
        return self.drafts is not None and not self.rivals

    def row(self, drafts: int) -> DraftCount:
        """What was found for a number of drafts."""
        return next(row for row in self.rows if row.drafts == drafts)


def best_of(
    requests: int, context: int, rounds: Sequence[Round], acceptance: Acceptance | None
) -> Best:
    """Judges every number of drafts that was measured and whose acceptance is known."""
    counts = measured_drafts(rounds)
    rows = tuple(_row(rounds, count, acceptance) for count in counts)
    timed = [row for row in rows if row.token_us is not None]
    chosen = max(timed, key=_speed, default=None)
    if chosen is None or acceptance is None or len(timed) < 2 or timed[0].drafts:
        return Best(requests, context, rows, None, (), fit_line(rounds))
    other_counts = [row.drafts for row in timed if row.drafts != chosen.drafts]
    share = _ERROR / max(len(other_counts), 1)
    rivals = tuple(
        count
        for count in other_counts
        if not (ratio := speed_over(rounds, acceptance, chosen.drafts, count, share))
        or ratio.low is None
        or ratio.low <= 1
    )
    return Best(requests, context, rows, chosen.drafts, rivals, fit_line(rounds))


def speed_over(
    rounds: Sequence[Round],
    acceptance: Acceptance,
    drafts: int,
    other: int,
    error: float = _ERROR,  # the share of such intervals that may miss
) -> StepCost | None:
    """How many times as fast tokens come at a number of drafts as at another."""
    widths = acceptance.width(drafts), acceptance.width(other)
    steps = step_spread(rounds, *widths)
    if steps is None:
        return None
    log_time, of_time = steps
    value = math.log(acceptance.tokens(drafts) / acceptance.tokens(other)) - log_time
    half = _half(error, of_time, tokens_spread(acceptance, drafts, other))
    if math.isinf(half):
        return StepCost(math.exp(value))
    return StepCost(math.exp(value), math.exp(value - half), math.exp(value + half))


def break_even(rounds: Sequence[Round], drafts: int) -> StepCost | None:
    """The mean share of accepted drafts at which they neither pay nor cost."""
    steps = step_spread(rounds, drafts, 0) if drafts else None
    if steps is None:
        return None
    value, spread = steps
    half = _half(_ERROR, spread)
    if math.isinf(half):
        return StepCost(math.expm1(value) / drafts)
    low, high = (math.expm1(end) / drafts for end in (value - half, value + half))
    return StepCost(math.expm1(value) / drafts, low, high)


def chosen_at(rounds: Sequence[Round], rate: float) -> int | None:
    """The best number of drafts where each is accepted with the same chance if those before it are.

    For a table of what would be best, where acceptance is not known.
    """
    counts = measured_drafts(rounds)
    if not counts or counts[0] or len(counts) < 2:
        return None
    accepted = tuple(rate**place for place in range(1, max(counts) + 1))
    return best_of(1, 0, rounds, Acceptance("given", (1.0,) * len(accepted), accepted)).drafts


def _speed(row: DraftCount) -> float:
    """Over no drafts in the same rounds, which what drifts is not in."""
    return row.speed.value if row.speed else 0.0


def _row(rounds: Sequence[Round], drafts: int, acceptance: Acceptance | None) -> DraftCount:
    plain = step_us(rounds, drafts)
    assert plain is not None  # it was measured in every round
    even = break_even(rounds, drafts)
    if acceptance is None or drafts > acceptance.most:
        return DraftCount(drafts, plain, even)
    took = step_us(rounds, acceptance.width(drafts)) or plain
    tokens = acceptance.tokens(drafts)
    speed = speed_over(rounds, acceptance, drafts, 0)
    return DraftCount(drafts, plain, even, tokens, took.value / tokens, speed)


def _half(error: float, *spreads: TokensSpread) -> float:
    """Half of the interval of a sum, by Welch and Satterthwaite."""
    total = math.fsum(spread.variance for spread in spreads)
    if total == 0 or math.isinf(total):
        return total
    parts = math.fsum(spread.variance**2 / spread.free for spread in spreads if spread.free)
    free = max(1, math.floor(total**2 / parts)) if parts else 1
    return student_quantile(1 - error / 2, free) * math.sqrt(total)
