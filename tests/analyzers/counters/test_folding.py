"""Amounts of kernels that are shorter than the samples, against a simulated truth."""

from __future__ import annotations

import numpy as np
import pytest

from spark_prof.analyzers.counters.folding import Calls, Equations, find_lag
from tests.analyzers.counters.simulated import Simulated, simulate
from tests.rows import each_row


def equations(run: Simulated) -> Equations:
    return Equations(run.begin, run.finish, run.calls, len(run.bytes))


def folded_errors(run: Simulated) -> np.ndarray:
    found = equations(run).solve(run.sampled)
    return np.abs(found.amount - run.bytes) / run.bytes.mean()


@each_row("interval_ns", [1_000, 2_000, 5_000, 10_000])
@each_row("seed", range(5))
def test_known_bytes_come_back(interval_ns: int, seed: int) -> None:
    run = simulate(seed, interval_ns=interval_ns, replays=40)
    assert folded_errors(run).max() < 0.005


@each_row("seed", range(5))
def test_kernels_as_short_as_a_sample_come_back(seed: int) -> None:
    run = simulate(seed, kernels=200, lowest_us=1.0, longest_us=6.0, interval_ns=2_000)
    assert folded_errors(run).max() < 0.01


@each_row("seed", range(5))
def test_the_error_that_is_stated_holds(seed: int) -> None:
    run = simulate(seed, noise=0.05, replays=60)
    found = equations(run).solve(run.sampled)
    streaming = run.bytes > 100 * run.duration_ns
    stated = np.array([found.error(row) for row in np.eye(len(run.bytes))])
    inside = np.abs(found.amount - run.bytes) < 2.5 * stated
    assert inside[streaming].mean() > 0.9
    assert (stated / run.bytes)[streaming].max() < 0.05


def test_bytes_are_conserved_and_idle_time_has_its_own() -> None:
    run = simulate(3, idle_rate=50.0)
    found = equations(run).solve(run.sampled)
    assert found.conserved == pytest.approx(1.0, abs=1e-3)
    assert found.idle_rate == pytest.approx(50.0, rel=0.05)
    assert found.amount @ equations(run).seen == pytest.approx(run.bytes.sum() * 40, rel=0.005)


def test_kernels_that_always_share_a_sample_in_the_same_way_are_not_told_apart() -> None:
    locked = simulate(1, kernels=12, longest_us=3.0, interval_ns=10_000, jitter=0.0,
                      period_ns=100_000)  # fmt: skip
    assert equations(locked).resolved.min() < 0.5
    free = simulate(1, kernels=12, longest_us=3.0, interval_ns=10_000)
    assert equations(free).resolved.min() > 0.9


def test_one_replay_has_no_error_to_state() -> None:
    run = simulate(1, replays=1)
    found = equations(run).solve(run.sampled)
    assert np.isnan(found.error(np.ones(len(run.bytes))))


def test_a_kernel_outside_the_samples_is_not_resolved() -> None:
    run = simulate(2)
    late = int(run.finish[-1]) + 1_000_000
    calls = Calls(
        np.append(run.calls.start_ns, late), np.append(run.calls.end_ns, late + 9_000),
        np.append(run.calls.slot, len(run.bytes)), np.append(run.calls.step, 0),
    )  # fmt: skip
    found = Equations(run.begin, run.finish, calls, len(run.bytes) + 1)
    assert found.resolved[-1] == 0.0
    assert found.resolved[:-1].min() > 0.9


@each_row("late_ns", [-7_000, -600, 600, 3_000])
def test_the_clocks_difference_is_found(late_ns: int) -> None:
    run = simulate(4, late_ns=late_ns)
    lag = find_lag(run.begin, run.finish, run.sampled, run.calls, len(run.bytes))
    assert abs(lag - late_ns) <= 100


def test_without_a_difference_none_is_found() -> None:
    run = simulate(5, noise=0.02)
    lag = find_lag(run.begin, run.finish, run.sampled, run.calls, len(run.bytes))
    assert abs(lag) <= 100
