"""Intervals of figures whose steps are alike for a while, over many made recordings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spark_prof.analyzers.comparing.noise import Change, change, figure_of, stretch_of

RUNS = 100


def steps(random: np.random.Generator, count: int, alike: float, spread: float) -> np.ndarray:
    """Times around 1000 us; each is `alike` of its neighbour's difference and else its own."""
    noise = random.normal(size=count)
    drift = np.empty(count)
    drift[0] = noise[0]
    for place in range(1, count):
        drift[place] = alike * drift[place - 1] + math.sqrt(1 - alike**2) * noise[place]
    return 1000 * (1 + spread * drift)


@pytest.mark.parametrize("statistic", ["median", "mean"])
@pytest.mark.parametrize(
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
        a, b = (figure_of(steps(random, count, alike, 0.02), statistic, 0.0) for _ in range(2))
        found = change(a, b)
        held += found.low <= 0 <= found.high
    assert held >= least * RUNS


def test_a_slower_side_is_seen() -> None:
    random = np.random.default_rng(6)
    seen = 0
    for _ in range(RUNS):
        a = figure_of(steps(random, 60, 0.3, 0.01), "median", 0.005)
        b = figure_of(1.03 * steps(random, 60, 0.3, 0.01), "median", 0.005)
        seen += change(a, b).low > 0
    assert seen >= 0.95 * RUNS


def test_the_floor_alone_makes_an_interval() -> None:
    a, b = (figure_of(np.full(50, us), "median", 0.005) for us in (1000.0, 1010.0))
    found = change(a, b)
    assert not found.sure
    assert found.high - found.us == pytest.approx(1.96 * math.hypot(5, 5.05), rel=0.01)


def test_neighbours_that_are_alike_are_drawn_together() -> None:
    random = np.random.default_rng(7)
    alone = stretch_of(steps(random, 400, 0.0, 0.01))
    together = stretch_of(steps(random, 400, 0.95, 0.01))
    assert alone < together <= 100


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
    found = change(figure_of(np.full(count, 5.0), "median", 0.0), figure_of(np.ones(9), "mean", 0))
    assert (found.low, found.high, found.sure) == (-math.inf, math.inf, False)


@pytest.mark.parametrize("statistic", ["median", "mean", "p99"])
def test_the_same_steps_give_the_same(statistic: str) -> None:
    values = steps(np.random.default_rng(9), 300, 0.5, 0.02)
    assert figure_of(values, statistic, 0.005) == figure_of(values, statistic, 0.005)


def test_a_share_of_nothing() -> None:
    assert Change(0, 5, 5, 4, 6).share(5) == math.inf
    assert Change(0, 0, 0, 0, 0).share(0) == 0
    assert Change(100, 103, 3, 2, 4).share(3) == pytest.approx(0.03)
