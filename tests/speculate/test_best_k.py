"""Tokens, time a token and the best number of drafts, against steps that are played through."""

from __future__ import annotations

import math
import random

import pytest

from spark_prof.ab.messages import RequestDrafts
from spark_prof.errors import CommandError
from spark_prof.speculate.acceptance import (
    Acceptance,
    counted_acceptance,
    given_acceptance,
    server_acceptance,
)
from spark_prof.speculate.best_k import best_of, break_even, chosen_at, speed_over
from spark_prof.speculate.step_cost import Round, fit_line, step_us

MOST = 7
PATTERNS: dict[str, list[int]] = {
    "all": [7],
    "none": [0],
    "first": [1],
    "half": [0, 7],
    "rising": [0, 1, 2, 3, 4, 5, 6, 7],
    "rare": [0, 0, 0, 0, 7],
    "two": [2],
    "two or three": [2, 3, 3],
    "mostly all": [7, 7, 7, 4],
    "first or none": [0, 1],
    "four": [4, 4, 3, 5],
    "decaying": [0, 0, 0, 0, 1, 1, 2, 3],
}
"""How many of 7 drafts one step after the other accepts."""


class Played:
    """Requests whose steps accept what a pattern says: the oracle, a step at a time."""

    def __init__(self, pattern: list[int], lengths: tuple[int, ...] = (17, 23, 40)) -> None:
        self.rows: list[list[int]] = []
        for number, length in enumerate(lengths):
            self.rows.append([pattern[(number + at) % len(pattern)] for at in range(length)])

    def tokens(self, drafts: int) -> int:
        """That all steps together give at a number of drafts."""
        total = 0
        for row in self.rows:
            for accepted in row:
                total += 1
                for place in range(drafts):
                    if accepted <= place:
                        break
                    total += 1
        return total

    @property
    def steps(self) -> int:
        return sum(map(len, self.rows))

    def by_position(self, place: int) -> int:
        return sum(accepted > place for row in self.rows for accepted in row)

    def requests(self) -> list[RequestDrafts]:
        return [
            RequestDrafts(
                len(row),
                (len(row),) * MOST,
                tuple(sum(accepted > place for accepted in row) for place in range(MOST)),
            )
            for row in self.rows
        ]


def rounds_of(
    step: dict[int, float], noise: float, count: int = 8, seed: object = 1
) -> list[Round]:
    """Rounds whose clocks drift together by 10 % and whose steps vary by a share each."""
    draw = random.Random(str(seed))
    return [
        {
            drafts: us * (1 + 0.1 * number / count) * (1 + noise * draw.gauss(0, 1))
            for drafts, us in step.items()
        }
        for number in range(count)
    ]


STEPS = {0: 10_000.0, **{drafts: 12_000.0 + 900.0 * drafts for drafts in range(1, MOST + 1)}}


@pytest.mark.parametrize("name", PATTERNS)
def test_tokens_positions_and_best_are_those_of_the_steps_played_through(name: str) -> None:
    played = Played(PATTERNS[name])
    acceptance = counted_acceptance(played.requests(), "requests")
    assert acceptance.steps == played.steps
    for place in range(MOST):
        assert acceptance.accepted[place] == played.by_position(place) / played.steps
    exact = [dict(STEPS)] * 3
    best = best_of(1, 128, exact, acceptance)
    times = {}
    for drafts in range(MOST + 1):
        tokens = played.tokens(drafts) / played.steps
        assert acceptance.tokens(drafts) == pytest.approx(tokens, rel=1e-12)
        times[drafts] = STEPS[drafts] / tokens
        assert best.row(drafts).token_us == pytest.approx(times[drafts], rel=1e-12)
    assert best.drafts == min(times, key=times.__getitem__)


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.02])
def test_the_best_is_right_wherever_it_is_called_decided(noise: float) -> None:
    decided = wrong = 0
    for name, pattern in PATTERNS.items():
        played = Played(pattern)
        times = {k: STEPS[k] / played.tokens(k) * played.steps for k in STEPS}
        truth = min(times, key=times.__getitem__)
        for seed in range(10):
            acceptance = counted_acceptance(played.requests(), "requests")
            best = best_of(1, 128, rounds_of(STEPS, noise, seed=(name, seed)), acceptance)
            decided += best.decided
            wrong += best.decided and best.drafts != truth
            if not best.decided and best.drafts != truth:
                assert truth in best.rivals
    assert wrong == 0
    assert decided > 50


def test_what_does_not_differ_is_undecided() -> None:
    alike = {0: 10_000.0, 1: 15_000.0, 2: 20_000.0}
    best = best_of(1, 128, rounds_of(alike, 0.01), given_acceptance("0.5,0.5"))
    assert not best.decided
    assert best.drafts is not None
    assert {best.drafts, *best.rivals} == {0, 1, 2}


def test_few_rounds_give_no_interval_and_no_decision() -> None:
    best = best_of(1, 128, [dict(STEPS)] * 2, given_acceptance("0.9,0.8"))
    assert best.row(1).step_us.low is None
    assert best.row(1).speed is not None
    assert best.row(1).speed.low is None  # type: ignore[union-attr]
    assert not best.decided


def test_drafts_break_even_where_as_many_tokens_come_in_the_same_time() -> None:
    for drafts in range(1, MOST + 1):
        even = break_even([dict(STEPS)] * 3, drafts)
        assert even is not None
        tokens = 1 + drafts * even.value
        assert STEPS[drafts] / tokens == pytest.approx(STEPS[0])
    costly = break_even([{0: 10.0, 1: 25.0}] * 3, 1)
    assert costly is not None
    assert costly.value == pytest.approx(1.5)  # not even every draft accepted would pay


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    truth = (1.8 / STEPS[1]) / (1 / STEPS[0])
    hits = 0
    for seed in range(400):
        ratio = speed_over(rounds_of(STEPS, 0.02, seed=seed), given_acceptance("0.8"), 1, 0)
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        hits += ratio.low <= truth <= ratio.high
    assert 370 <= hits <= 392


def test_acceptance_that_differs_between_requests_widens_the_interval() -> None:
    alike = [RequestDrafts(100, (100,), (50,))] * 8
    apart = [RequestDrafts(100, (100,), (100 * (n % 2),)) for n in range(8)]
    widths = []
    for requests in (alike, apart):
        acceptance = counted_acceptance(requests, "requests")
        ratio = speed_over([dict(STEPS)] * 3, acceptance, 1, 0)
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        widths.append(ratio.high - ratio.low)
    assert widths[0] == pytest.approx(0)
    assert widths[1] > 0.2


def test_a_server_without_requests_counts_each_step_as_a_draw() -> None:
    few, many = (server_acceptance(steps, 2 * steps, (steps // 2, steps // 4))
                 for steps in (100, 10_000))  # fmt: skip
    assert few.drafted == (1.0, 1.0)
    assert few.accepted == (0.5, 0.25)
    widths = []
    for acceptance in (few, many):
        ratio = speed_over([dict(STEPS)] * 3, acceptance, 2, 0)
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        widths.append(ratio.high - ratio.low)
    assert widths[0] == pytest.approx(10 * widths[1], rel=0.1)


def test_a_drafter_that_finds_drafts_at_times_takes_the_time_of_what_it_finds() -> None:
    rounds: list[Round] = [{0: 10.0, 1: 12.0, 2: 16.0}] * 3
    acceptance = Acceptance("requests", (0.5, 0.5), (0.4, 0.2), 100)
    assert acceptance.width(2) == 1.0
    best = best_of(1, 128, rounds, acceptance)
    assert best.row(2).token_us == pytest.approx(12.0 / 1.6)
    assert best.row(1).token_us == pytest.approx(11.0 / 1.4)
    assert best.drafts == 2


def test_the_line_has_the_planted_slope() -> None:
    fit = fit_line(rounds_of(STEPS, 0.002))
    assert fit is not None
    assert fit.each_us.low is not None
    assert fit.each_us.high is not None
    drifted = 900.0 * (1 + 0.1 * 3.5 / 8)
    assert fit.each_us.low <= drifted <= fit.each_us.high
    assert fit.worst < 0.01
    assert fit_line([{0: 1.0, 1: 2.0}]) is None
    bent = fit_line([{0: 1.0, 1: 2.0, 2: 2.0, 3: 6.0}] * 3)
    assert bent is not None
    assert bent.worst > 0.2


def test_the_best_for_each_rate_rises_with_it() -> None:
    choices = [chosen_at([dict(STEPS)] * 3, rate / 10) for rate in range(11)]
    assert choices[0] == 0
    assert choices[10] == MOST
    numbers = [drafts for drafts in choices if drafts is not None]
    assert numbers == sorted(numbers)
    assert chosen_at([{1: 2.0}], 0.5) is None


def test_without_acceptance_nothing_is_best() -> None:
    best = best_of(4, 128, [dict(STEPS)] * 3, None)
    assert best.drafts is None
    assert not best.decided
    assert best.row(3).tokens is None
    assert best.row(3).break_even is not None


def test_positions_beyond_those_that_are_known_are_not_judged() -> None:
    best = best_of(1, 128, [dict(STEPS)] * 3, given_acceptance("0.99,0.98"))
    assert best.row(3).token_us is None
    assert best.drafts == 2


@pytest.mark.parametrize("text", ["", "a", "0.5,0.6", "1.5", "-0.1", "nan", "0.5,,0.4"])
def test_what_is_no_acceptance_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="--acceptance"):
        given_acceptance(text)


def test_requests_without_drafts_are_refused() -> None:
    with pytest.raises(CommandError, match="no step"):
        counted_acceptance([RequestDrafts(10, (0, 0), (0, 0))], "requests")
    with pytest.raises(CommandError, match="no drafts"):
        server_acceptance(0, 0, ())


def test_a_step_that_was_not_measured_has_no_time() -> None:
    assert step_us([{0: 1.0, 2: 3.0}], 5) is None
    between = step_us([{0: 1.0, 2: 3.0}], 1)
    assert between is not None
    assert math.isclose(between.value, 2.0)
