"""Amounts of kernels that are shorter than the samples, against a simulated truth.

Least squares under x >= 0: the conditions that only the solution fulfils.

Overlap of samples and kernels, against a count of every nanosecond.
"""

from __future__ import annotations

import numpy as np
import pytest

from spark_prof.analyzers.counters.folding import (
    Equations,
    amounts_by_time,
    find_lag,
    gram,
    not_negative,
    overlaps,
)
from tests.analyzers.counters.simulated import Simulated, simulate
from tests.rows import each_row


def equations(run: Simulated) -> Equations:
    return Equations(run.begin, run.finish, run.calls, len(run.bytes))


@each_row("interval_ns", [1_000, 2_000, 5_000, 10_000])
@each_row("seed", range(3))
def test_known_bytes_come_back(interval_ns: int, seed: int) -> None:
    run = simulate(seed, interval_ns=interval_ns, replays=40)
    found = equations(run).solve(run.sampled)
    assert np.abs(found.amount - run.bytes).max() < 0.005 * run.bytes.mean()


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
    assert found.amount @ equations(run).sampled_calls == pytest.approx(
        run.bytes.sum() * 40, rel=0.005
    )


@each_row("late_ns", [-7_000, -600, 600, 3_000])
def test_the_clocks_difference_is_found(late_ns: int) -> None:
    run = simulate(4, late_ns=late_ns)
    lag = find_lag(run.begin, run.finish, run.sampled, run.calls, len(run.bytes))
    assert abs(lag - late_ns) <= 100


@each_row("seed", range(20))
def test_the_solution_fulfils_the_conditions_of_karush_kuhn_and_tucker(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 40))
    matrix = random.normal(size=(3 * size, size))
    normal = matrix.T @ matrix
    target = matrix.T @ random.normal(size=3 * size)
    x, free = not_negative(normal, target)
    slope = normal @ x - target
    scale = np.abs(target).max()
    assert (x >= 0).all()
    assert (x[~free] == 0).all()
    assert np.abs(slope[free]).max(initial=0) < 1e-4 * scale
    assert slope[~free].min(initial=0) > -1e-5 * scale


@each_row("seed", range(10))
def test_the_product_of_a_sparse_matrix_is_that_of_the_dense_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, size, entries = 30, 7, int(random.integers(0, 200))
    row = random.integers(0, rows, entries)
    column = random.integers(0, size, entries)
    value = random.normal(size=entries)
    dense = np.zeros((rows, size))
    np.add.at(dense, (row, column), value)
    assert gram(row, column, value, size) == pytest.approx(dense.T @ dense)


def random_times(seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(200, 20, replace=False))
    start = random.integers(0, 190, int(random.integers(0, 15)))
    return edges[::2], edges[1::2], start, start + random.integers(0, 30, len(start))


@each_row("seed", range(30))
def test_every_nanosecond_is_counted_once(seed: int) -> None:
    begin, finish, start, end = random_times(seed)
    index, kernel, ns = overlaps(begin, finish, start, end)
    table = np.zeros((len(begin), len(start)), int)
    np.add.at(table, (index, kernel), ns)
    for sample in range(len(begin)):
        inside = np.arange(begin[sample], finish[sample])
        ran = [(inside >= s) & (inside < e) for s, e in zip(start, end, strict=True)]
        assert table[sample].tolist() == [int(r.sum()) for r in ran]
    assert (ns >= 0).all()


def test_a_long_kernel_has_what_its_samples_counted() -> None:
    begin = np.arange(0, 100_000, 2_000)
    sampled = np.ones(len(begin))
    start, end = np.array([1_000, 50_000, 90_000]), np.array([41_000, 52_000, 130_000])
    found = amounts_by_time(begin, begin + 2_000, sampled, start, end)
    # The first kernel has the halves of two samples to itself; the last one runs out of samples.
    assert found[0] == 21
    assert np.isnan(found[1:]).all()
