"""Aligns two sequences of kernels, such as the same decode step eager and compiled.

The alignment that matches most, by dynamic programming with free gaps (Needleman and Wunsch 1970).
Two kernels match the better the more alike their names are; kernels with nothing in common never
match.
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

_SAME_NAME, _SAME_BASE, _SAME_PRODUCT, _SAME_COMPONENT, _FUSED = 12, 8, 6, 5, 2
_DIGITS = re.compile(r"\d+")
_FUSABLE = frozenset({"norm", "rope", None})


def align(first: Sequence[str], second: Sequence[str]) -> Int64s:
    """For each kernel of the first sequence its partner in the second, -1 for none.

    Args:
        first: kernel names in launch order.
        second: the same of the other run; at most MOST_CELLS pairs in all.
    """
    if not len(first) or not len(second):
        return np.full(len(first), -1, np.int64)
    scores, rows, columns = _scores(first, second)
    best = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for i, row in enumerate(rows, 1):
        score = scores[row][columns]
        reached = np.where(score > 0, best[i - 1, :-1] + score, 0)
        np.maximum(reached, best[i - 1, 1:], out=reached)
        np.maximum.accumulate(reached, out=best[i, 1:])
    partner = np.full(len(first), -1, np.int64)
    i, j = len(first), len(second)
    while i and j:
        score = scores[rows[i - 1], columns[j - 1]]
        if score > 0 and best[i, j] == best[i - 1, j - 1] + score:
            partner[i - 1] = j - 1
            i, j = i - 1, j - 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return partner


def _scores(
    first: Sequence[str], second: Sequence[str]
) -> tuple[npt.NDArray[np.int32], Int64s, Int64s]:
    """The score of each pair of distinct names, and which name each kernel has."""
    names_1, rows = np.unique(np.array(first, object), return_inverse=True)
    names_2, columns = np.unique(np.array(second, object), return_inverse=True)
    table = [[_score(a, b) for b in names_2.tolist()] for a in names_1.tolist()]
    return np.array(table, np.int32), rows.reshape(-1), columns.reshape(-1)


def _score(first: str, second: str) -> int:
    """How much alike two kernels are, 0 for not at all."""
    if first == second:
        return _SAME_NAME
    if finishes_gemm(first) != finishes_gemm(second):
        return 0
    if _base(first) == _base(second):
        return _SAME_BASE
    if is_gemm(first) != is_gemm(second):
        return 0
    one, other = classify(first).component, classify(second).component
    if one is not None and one == other:
        return _SAME_COMPONENT + 1 if is_gemm(first) else _SAME_COMPONENT
    if is_gemm(first):
        return _SAME_PRODUCT if one is None or other is None else 0
    # A kernel that a compiler fused stands for one of those that it replaces.
    fused = "fused" in first or "fused" in second
    return _FUSED if fused and one in _FUSABLE and other in _FUSABLE else 0


@lru_cache(maxsize=1 << 14)
def _base(name: str) -> str:
    """A name without template arguments and numbers, which differ between tile sizes."""
    return _DIGITS.sub("", split_name(name)[0])
