"""Intervals of figures whose steps are alike for a while, over many made recordings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spark_prof.analyzers.comparing.noise import (
    Change,
    Figure,
    change,
    figure_of,
    interval_of,
)
from tests.rows import each_row

RUNS = 100


def steps(random: np.random.Generator, count: int, alike: float, spread: float) -> np.ndarray:
    """Times around 1000 us; each is `alike` of its neighbour's difference and else its own."""
    noise = random.normal(size=count)
    drift = np.empty(count)
    drift[0] = noise[0]
    for place in range(1, count):
        drift[place] = alike * drift[place - 1] + math.sqrt(1 - alike**2) * noise[place]
    return 1000 * (1 + spread * drift)


@each_row("statistic", ["median", "mean"])
@each_row(
    ("count", "alike", "least"),
    [(40, 0.0, 0.9), (200, 0.0, 0.9), (200, 0.7, 0.88), (1000, 0.9, 0.82)],
)
def test_the_interval_holds_the_truth(
    statistic: str, count: int, alike: float, least: float
) -> None:
    """A 95 % interval without any floor; where neighbours are much alike it is a little narrow."""
    random = np.random.default_rng(5)
    held = 0
    for _ in range(RUNS):
        a, b = ([figure_of(steps(random, count, alike, 0.02), statistic, 0.0)] for _ in range(2))
        found = change(a, b)
        held += found.low <= 0 <= found.high
    assert held >= least * RUNS


def test_a_hiccup_moves_no_median() -> None:
    random = np.random.default_rng(8)
    values = steps(random, 60, 0.0, 0.001)
    before = figure_of(values, "median", 0.0)
    values[30] *= 20
    after = figure_of(values, "median", 0.0)
    assert after.value == pytest.approx(before.value, rel=1e-3)
    assert after.error < 3 * before.error + 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_three_steps_nothing_is_known(count: int) -> None:
    few, many = figure_of(np.full(count, 5.0), "median", 0.0), figure_of(np.ones(9), "mean", 0)
    found = change([few], [many])
    assert (found.low, found.high, found.sure) == (-math.inf, math.inf, False)


def test_a_share_of_nothing() -> None:
    assert Change(0, 5, 5, 4, 6).share(5) == math.inf
    assert Change(0, 0, 0, 0, 0).share(0) == 0
    assert Change(100, 103, 3, 2, 4).share(3) == pytest.approx(0.03)


def figures(*values: float, error: float = 0.0, start: float = 0.015) -> list[Figure]:
    return [Figure(value, error, 50.0, start=start * value) for value in values]


def test_of_several_recordings_starts_are_estimated() -> None:
    """Welch's t, by hand: 3 a side with the same variance have 4 degrees of freedom."""
    found = change(figures(99, 100, 101), figures(109, 110, 111))
    assert found.us == pytest.approx(10)
    assert found.high - found.us == pytest.approx(2.776 * math.sqrt(2 / 3), rel=2e-3)
    two = change(figures(99, 101), figures(100, 100))
    assert two.high - two.us == pytest.approx(12.706, rel=1e-3)


def test_the_interval_is_never_narrower_than_what_varies_within() -> None:
    found = change(figures(100, 100, 100, error=3.0), figures(100, 100, 100, error=3.0))
    assert found.high == pytest.approx(1.96 * math.sqrt(2 * 9 / 3), rel=0.02)


def test_one_recording_against_several_keeps_what_is_assumed() -> None:
    alike = change(figures(100), figures(100, 100, 100))
    assert alike.high == pytest.approx(1.96 * 1.5, rel=0.01)
    # Starts that are seen to differ by more are taken to do so on both sides.
    apart = change(figures(100), figures(90, 100, 110))
    assert apart.high > 1.96 * math.hypot(10, 10 / math.sqrt(3))
    assert change(figures(90, 100, 110), figures(100)).high == pytest.approx(apart.high, rel=0.01)


def test_the_interval_of_a_share_holds_0_where_that_of_the_difference_does() -> None:
    random = np.random.default_rng(10)
    for _ in range(200):
        a, b = (figures(*(100 + 3 * random.normal(size=3))) for _ in range(2))
        found = change(a, b)
        low, high = found.shares
        assert (low > 0) == (found.low > 0)
        assert (high < 0) == (found.high < 0)
    assert change(figures(0, 0), figures(1, 2)).shares[1] == math.inf
    assert change(figures(-1, 30), figures(1, 2)).shares == (-math.inf, math.inf)


def test_the_interval_of_one_side() -> None:
    low, high = interval_of(figures(99, 100, 101))
    assert (low + high) / 2 == pytest.approx(100)
    assert high - 100 == pytest.approx(4.303 / math.sqrt(3), rel=0.01)
    assert interval_of(figures(100))[1] == pytest.approx(100 + 1.96 * 1.5, rel=1e-3)
