"""Aligns two sequences of kernels, such as the same decode step eager and compiled.

The longest common subsequence, by dynamic programming. Kernels are alike that are called the same
but for template arguments and numbers, that work for the same component, or that are both products;
what a compiler fused is alike to the norm or rope that its name tells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm
from spark_prof.analyzers.classify.names import split_name

__all__ = ["MOST_CELLS", "align"]

Int64s = npt.NDArray[np.int64]

MOST_CELLS = 60_000_000
"""Longer pairs of sequences are not aligned: it would take more than a quarter of a gigabyte."""


def align(first: Sequence[str], second: Sequence[str]) -> Int64s:
    """For each kernel of the first sequence its partner in the second, -1 for none.

    Args:
        first: kernel names in launch order.
        second: the same of the other run; at most MOST_CELLS pairs in all.
    """
    partner = np.full(len(first), -1, np.int64)
    if not len(first) or not len(second):
        return partner
    kinds = np.array([_kind(name) for name in (*first, *second)], object)
    numbers = np.unique(kinds, return_inverse=True)[1]
    rows, columns = numbers[: len(first)], numbers[len(first) :]
    best = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for i, row in enumerate(rows, 1):
        reached = np.maximum(best[i - 1, :-1] + (columns == row), best[i - 1, 1:])
        np.maximum.accumulate(reached, out=best[i, 1:])
    i, j = len(first), len(second)
    while i and j:
        if rows[i - 1] == columns[j - 1] and best[i, j] == best[i - 1, j - 1] + 1:
            partner[i - 1] = j - 1
            i, j = i - 1, j - 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return partner


@lru_cache(maxsize=1 << 14)
def _kind(name: str) -> str:
    """What kernels that are alike have in common."""
    if is_gemm(name):
        component = classify(name).component
        return f"product {component or ''}"
    if finishes_gemm(name):
        return "rest of a product"
    fused = re.search(r"fused\w*?(norm|rsqrt)", name)
    component = "norm" if fused else classify(name).component
    return component or re.sub(r"\d+", "", split_name(name)[0])
