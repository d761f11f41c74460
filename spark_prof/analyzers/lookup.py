"""Looks numbers up, and tells what is sorted already: both for millions of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["Integers", "Positions", "ascends", "positions"]

Integers = npt.NDArray[np.signedinteger[Any]]
Positions = npt.NDArray[np.int32]

_SMALL_TABLE = 1 << 16


def positions(known: Integers, wanted: Integers) -> Positions:
    """Where each wanted number stands among the known ones, -1 where it is none of them.

    Args:
        known: numbers, ascending and distinct.
        wanted: numbers in any order.
    """
    if not len(known):
        return np.full(len(wanted), -1, np.int32)
    lowest, highest = int(known[0]), int(known[-1])
    span = highest - lowest + 1
    # Numbers that were counted up are found in a table, scattered ones by their hash.
    if span > max(len(wanted), _SMALL_TABLE):
        return pd.Index(known).get_indexer(pd.Index(wanted)).astype(np.int32)
    table = np.full(span + 1, -1, np.int32)
    table[known.astype(np.int64) - lowest] = np.arange(len(known), dtype=np.int32)
    offset = wanted.astype(np.int64)
    offset -= lowest
    # As unsigned numbers the negative ones are the largest, so that one limit does for both ends.
    offset = np.minimum(offset.view(np.uint64), np.uint64(span))
    found: Positions = table[offset.view(np.int64)]
    return found


def ascends(*keys: Integers) -> bool:
    """Whether the rows ascend by these keys, the first one weighing most."""
    equal: npt.NDArray[np.bool_] | None = None
    for key in keys:
        before, after = key[:-1], key[1:]
        falls = after < before
        if equal is not None:
            falls &= equal
        if falls.any():
            return False
        if key is not keys[-1]:
            same = after == before
            equal = same if equal is None else equal & same
    return True
