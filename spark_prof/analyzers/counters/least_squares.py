"""Least squares without negative unknowns, for a sparse matrix with few entries a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_ROUNDS = 24
_TINY = 1e-6
"""Of the largest unknown: one that is less far below 0 is taken for 0."""


def gram(row: Integers, column: Integers, value: Floats, size: int) -> Floats:
    """The product of the matrix's transpose with itself, from its entries."""
    order = np.argsort(row, kind="stable")
    row, column, value = row[order], column[order], value[order]
    total = np.zeros(size * size)
    # Entries of one row are neighbours: pair each with the next, the one after, and so on.
    apart = 0
    while True:
        same = row[apart:] == row[: len(row) - apart]
        if not same.any():
            return total.reshape(size, size)
        left, right = column[: len(row) - apart][same], column[apart:][same]
        product = (value[: len(row) - apart] * value[apart:])[same]
        total += np.bincount(left * size + right, weights=product, minlength=size * size)
        if apart:
            total += np.bincount(right * size + left, weights=product, minlength=size * size)
        apart += 1


def not_negative(normal: Floats, target: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Solves normal @ x = target under x >= 0; returns x and which of it is not held at 0.

    Block principal pivoting: Kim and Park, SIAM Journal on Scientific Computing 33 (2011).
    """
    free = np.ones(len(target), bool)
    x = np.zeros(len(target))
    for attempt in range(_ROUNDS):
        x[:] = 0.0
        x[free] = np.linalg.solve(normal[np.ix_(free, free)], target[free])
        slope = normal @ x - target
        wrong = np.where(
            free,
            x < -_TINY * np.abs(x).max(initial=0.0),
            slope < -_TINY * np.abs(target).max(initial=0.0),
        )
        if not wrong.any():
            break
        if attempt > _ROUNDS // 2:
            # All at once may go round in circles; one at a time cannot.
            wrong[: np.flatnonzero(wrong)[-1]] = False
        free ^= wrong
    return np.maximum(x, 0.0), free
