"""Steps as the scheduler saw them become times by drafts, and times of a token."""

from __future__ import annotations

import pytest

from spark_prof.ab.messages import Drafted, DraftStep
from spark_prof.errors import CommandError
from spark_prof.speculate.measuring import step_times, token_times


def steps_of(widths: list[int], requests: int = 2, tokens: int = 3) -> list[DraftStep]:
    """Steps that take 1 ms and 100 us a draft, the first of each number 50 ms more."""
    rows, now, last = [], 0, -1
    for width in widths:
        now += 1_000_000 + 100_000 * width + (50_000_000 if width != last else 0)
        rows.append(DraftStep(now, requests, width, width, width * requests, tokens, 100))
        last = width
    return rows


def test_steps_after_a_change_are_left_out() -> None:
    times = step_times(steps_of([0] * 9 + [2] * 9 + [1] * 9 + [3] * 2), 2)
    assert times == {0: 1000.0, 1: 1100.0, 2: 1200.0}


def test_steps_with_other_requests_do_not_count() -> None:
    rows = steps_of([1] * 12, requests=1)
    assert step_times(rows, 2) == {}
    prefills = [DraftStep(row.at_ns, -1, 1, 1, 2, 3, 100) for row in rows]
    assert step_times(prefills, 2) == {}


def test_where_a_drafter_finds_fewer_the_mean_counts() -> None:
    rows = [
        DraftStep(at * 1_000_000, 4, at % 2, 3, 8, 9, 100) for at in range(20)
    ]  # of 4 requests 8 drafts
    assert step_times(rows, 4) == {2: 1000.0}
    alike = [DraftStep((20 + at) * 2_000_000, 4, 2, 2, 8, 9, 100) for at in range(12)]
    assert step_times([*rows, *alike], 4)[2] == 2000.0


def test_the_time_of_a_token_is_that_of_the_steps_over_what_they_gave() -> None:
    rows = steps_of([2] * 10, requests=2, tokens=4)
    us, tokens = token_times(Drafted(rows, [], [], 0.0), 2)
    assert us == pytest.approx(600.0)
    assert tokens == pytest.approx(2.0)
    with pytest.raises(CommandError, match="no step had 3 requests"):
        token_times(Drafted(rows, [], [], 0.0), 3)


def test_the_first_three_steps_of_every_stretch_do_not_count() -> None:
    """They take 50 ms, others 1 ms; stretches of another number of requests lie between."""
    rows, now = [], 0
    for requests in (2, 5, 2, -1, 2):
        for at in range(9):
            now += 50_000_000 if at < 3 else 1_000_000
            rows.append(DraftStep(now, requests, 1, 1, requests, 4, 100))
    for requests, tokens in ((2, 2.0), (5, 0.8)):
        found = token_times(Drafted(rows, [], [], 0.0), requests)
        assert found == pytest.approx((1000.0 / tokens, tokens))
    assert step_times(rows, 2) == {1: 1000.0}
