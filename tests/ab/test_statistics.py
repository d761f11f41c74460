"""Gains of synthetic steps, whose effect is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from spark_prof.ab.statistics import (
    Estimate,
    Interval,
    aa_test,
    compare,
    compare_starts,
    why_unknown,
)
from spark_prof.ab.steps import Quad, block_order, make_quads
from spark_prof.analyzers.t_distribution import student_quantile
from tests.ab.timed import STEP_US, timed
from tests.rows import each_row

Noise = Callable[[np.random.Generator, int], np.ndarray]
RUNS = 120


def white(random: np.random.Generator, count: int) -> np.ndarray:
    return random.normal(0, 0.01, count)


def autoregressive(random: np.random.Generator, count: int) -> np.ndarray:
    """AR(1): what a step has in common with the one before."""
    values = random.normal(0, 0.004, count)
    for place in range(1, count):
        values[place] += 0.9 * values[place - 1]
    return values


def hiccups(random: np.random.Generator, count: int) -> np.ndarray:
    """One step in fifty takes up to ten times as long."""
    late = random.random(count) < 0.02
    return white(random, count) + late * random.uniform(0, 9, count)


def stalls(random: np.random.Generator, count: int) -> np.ndarray:
    """A stretch as long as a block takes 30 % longer, three times."""
    values = white(random, count)
    for start in random.integers(0, count, 3):
        values[start : start + 12] += 0.3
    return values


def quadratic(random: np.random.Generator, count: int) -> np.ndarray:
    """It warms up: 5 % from beginning to end, and the context grows."""
    places = np.arange(count) / count
    return white(random, count) + 0.05 * places**2 + 0.03 * places


def jitter(random: np.random.Generator, count: int) -> np.ndarray:
    """Steps that start late: longer, and the next one shorter."""
    return np.diff(random.exponential(0.02, count + 1))


def quads_of(
    seed: int, gain: float, noise: Noise, quads: int = 20, steps: int = 12
) -> tuple[Quad, ...]:
    plan = block_order(quads, steps)
    extra = noise(np.random.default_rng(seed), quads * 4 * steps)
    base = {"a": STEP_US, "b": STEP_US / gain}
    made, _ = make_quads(timed(plan, lambda side, place, _: base[side] * (1 + extra[place])))
    return made


def covered(gain: float, noise: Noise, quads: int) -> float:
    """The share of runs whose interval holds the true gain."""
    estimates = [compare(quads_of(seed, gain, noise, quads)) for seed in range(RUNS)]
    return sum(e.gain is not None and e.gain.low <= gain <= e.gain.high for e in estimates) / RUNS


@each_row("noise", [white, autoregressive, hiccups, stalls, quadratic, jitter])
@each_row(("gain", "quads"), [(1.0, 20), (1.25, 8)])
def test_the_interval_holds_the_truth(noise: Noise, gain: float, quads: int) -> None:
    assert covered(gain, noise, quads) >= 0.90


def test_of_five_quads_none_may_lie_beyond_the_truth_by_chance() -> None:
    """All five lie on one side of it in 1 of 16 runs: their range alone would be too narrow."""
    assert covered(1.0, white, 5) >= 0.95


@each_row("quads", [5, 6, 10, 40])
def test_it_is_a_95_percent_interval(quads: int) -> None:
    """120 runs of a 95 % interval hold the truth in 107 to 119 of them, but in one case of 100."""
    assert 107 / 120 <= covered(1.1, white, quads) <= 119 / 120


def test_the_saving_holds_the_truth_too() -> None:
    truth = STEP_US - STEP_US / 1.25
    estimates = [compare(quads_of(seed, 1.25, white)) for seed in range(RUNS)]
    held = sum(
        e.saved_us is not None and e.saved_us.low <= truth <= e.saved_us.high for e in estimates
    )
    assert 0.89 <= held / RUNS <= 0.995


@each_row("noise", [white, autoregressive, hiccups, stalls, quadratic, jitter])
def test_a_known_gain_is_found(noise: Noise) -> None:
    estimate = compare(quads_of(1, 1.25, noise))
    assert estimate.gain is not None
    assert estimate.gain.value == pytest.approx(1.25, rel=0.01)
    assert estimate.gain.half_width < 0.02


def test_figures_agree_with_each_other() -> None:
    estimate = compare(quads_of(2, 1.3, stalls))
    assert estimate.a_us is not None
    assert estimate.b_us is not None
    assert estimate.gain is not None
    assert estimate.saved_us is not None
    assert estimate.gain.value == pytest.approx(estimate.a_us / estimate.b_us, rel=1e-12)
    assert estimate.saved_us.value == pytest.approx(estimate.a_us - estimate.b_us, rel=1e-12)
    assert estimate.gain.low <= estimate.gain.value <= estimate.gain.high
    assert (estimate.quads, estimate.steps) == (20, 20 * 40)


def test_the_same_quads_give_the_same_estimate() -> None:
    quads = quads_of(3, 1.2, hiccups)
    assert compare(quads) == compare(quads)


def test_a_disturbed_quad_hardly_counts() -> None:
    quads = quads_of(4, 1.25, white)
    calm = compare(quads)
    spoilt = compare([replace(quads[0], b_us=50 * quads[0].b_us), *quads[1:]])
    assert calm.gain is not None
    assert spoilt.gain is not None
    assert spoilt.gain.value == pytest.approx(calm.gain.value, rel=2e-3)


def test_swapping_the_sides_turns_the_gain_over() -> None:
    quads = quads_of(5, 1.25, white)
    turned = [replace(quad, a_us=quad.b_us, b_us=quad.a_us) for quad in quads]
    forth, back = compare(quads), compare(turned)
    assert forth.gain is not None
    assert back.gain is not None
    assert back.gain.value == pytest.approx(1 / forth.gain.value, rel=1e-9)


def test_without_noise_the_clock_makes_the_width() -> None:
    """Half a microsecond is all that it resolves."""
    estimate = compare([Quad(number, 3000.0, 2400.0, 40, ()) for number in range(20)])
    wide = 1.25 * 0.5 / 2400
    assert estimate.gain == Interval(1.25, 1.25 - wide, 1.25 + wide)
    assert estimate.saved_us == Interval(600.0, 599.5, 600.5)
    assert estimate.detectable == pytest.approx(0.5 / 2400, rel=1e-2)


@each_row("quads", range(5))
def test_few_quads_give_no_interval(quads: int) -> None:
    estimate = compare(quads_of(6, 1.25, white)[:quads])
    assert estimate.gain is None
    assert estimate.saved_us is None
    assert estimate.detectable is None
    assert estimate.missing.startswith(f"{quads} quads count")
    assert (estimate.a_us is None) == (quads == 0)


def test_quads_that_were_dropped_are_told() -> None:
    plan = block_order(5, 12)
    whole = timed(plan, lambda side, place, index: STEP_US)
    quads, dropped = make_quads([step for step in whole if step.block != 7])
    estimate = compare(quads, dropped)
    assert [drop.quad for drop in estimate.dropped] == [1]
    assert "1 were dropped" in estimate.missing


@each_row(
    ("estimate", "why"),
    [
        (compare([]), "0 quads count"),
        (compare(quads_of(12, 1.0, white, 19)), "takes 20 quads"),
        (compare(quads_of(12, 1.0, stalls, 20)), "quads were disturbed"),
        (replace(compare(quads_of(12, 1.0, white)), outliers=None), "an earlier version"),
        (replace(compare(quads_of(12, 1.0, white)), a_us=0.0), "the times vary"),
    ],
)
def test_it_is_told_why_the_detectable_effect_is_not_known(estimate: Estimate, why: str) -> None:
    assert why in why_unknown(estimate)


def test_steady_quads_have_a_detectable_effect() -> None:
    for found in (
        compare(quads_of(12, 1.0, white)),
        compare_starts([1e4, 10010.0], [1e4, 10020.0], 9),
    ):
        assert found.gain is not None
        assert found.detectable is not None
        assert found.gain.half_width < found.detectable < 2 * found.gain.half_width
        assert not why_unknown(found)


def test_a_side_against_itself_is_no_effect() -> None:
    tests = [aa_test(compare(quads_of(seed, 1.0, white))) for seed in range(RUNS)]
    assert sum(test.passed for test in tests) / RUNS >= 0.90
    assert all(test.floor is not None and test.floor < 0.02 for test in tests)
    assert next(test for test in tests if test.passed).line.endswith("no effect")


def test_a_side_that_differs_from_itself_is_told() -> None:
    test = aa_test(compare(quads_of(7, 1.03, white)))
    assert not test.passed
    assert test.floor is not None
    assert test.floor > 0.03
    assert "not steady" in test.line


def test_an_interval_that_is_not_there_does_not_pass() -> None:
    test = aa_test(compare([]))
    assert not test.passed
    assert test.floor is None
    assert "not known: 0 quads" in test.line


@each_row("starts", [(2, 2), (3, 3), (2, 4), (8, 8)])
def test_starts_are_a_95_percent_interval(starts: tuple[int, int]) -> None:
    random = np.random.default_rng(10)
    held = 0
    for _ in range(1000):
        a = 3000 * np.exp(random.normal(0, 0.01, starts[0]))
        b = 2400 * np.exp(random.normal(0, 0.01, starts[1]))
        gain = compare_starts(a.tolist(), b.tolist(), 1000).gain
        assert gain is not None
        held += gain.low <= 1.25 <= gain.high
    assert 0.93 <= held / 1000 <= 0.97


def test_one_start_is_no_interval() -> None:
    estimate = compare_starts([3000.0, 3001.0], [2400.0], 500)
    assert estimate.gain is None
    assert estimate.b_us == pytest.approx(2400)
    assert "two starts" in estimate.missing
    assert compare_starts([], [], 0).a_us is None


@each_row(
    ("probability", "free", "value"),
    # Abramowitz and Stegun, table 26.10.
    [
        (0.975, 2, 4.303),
        (0.975, 4, 2.776),
        (0.975, 9, 2.262),
        (0.975, 30, 2.042),
        (0.975, 120, 1.980),
        (0.8, 4, 0.941),
        (0.8, 10, 0.879),
    ],
)
def test_quantiles_of_students_t(probability: float, free: int, value: float) -> None:
    assert student_quantile(probability, free) == pytest.approx(
        value, rel=0.01 if free < 4 else 1e-3
    )


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_long_steps_are_as_steady_as_longer_ones(scale: float) -> None:
    quads = quads_of(11, 1.25, white)
    scaled = [replace(quad, a_us=scale * quad.a_us, b_us=scale * quad.b_us) for quad in quads]
    long = [replace(quad, a_us=1e3 * quad.a_us, b_us=1e3 * quad.b_us) for quad in quads]
    one, other = compare(long).gain, compare(scaled).gain
    assert one is not None
    assert other is not None
    assert math.isclose(one.low, other.low, rel_tol=1e-6)
    assert math.isclose(one.high, other.high, rel_tol=1e-6)
