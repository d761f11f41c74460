"""Least squares under x >= 0: the conditions that only the solution fulfils."""

from __future__ import annotations

import numpy as np
import pytest

from spark_prof.analyzers.counters.folding import gram, not_negative
from tests.rows import each_row


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
