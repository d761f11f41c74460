"""Lookups against a dictionary, and what counts as sorted."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spark_prof.analyzers.lookup import ascends, by_blocks, positions
from tests.rows import each_row

FAR = (1 << 62) + 1
RANGES = {
    "close": (-3, 40),
    "scattered": (-(1 << 31), (1 << 31) - 1),
    "far": (FAR, FAR + 90),
    "both ends": (-(1 << 63), (1 << 63) - 1),
}


@each_row("seed", range(6))
@each_row("kind", RANGES)
def test_positions(kind: str, seed: int) -> None:
    chosen = random.Random(seed)
    lowest, highest = RANGES[kind]
    known = sorted({chosen.randint(lowest, highest) for _ in range(chosen.choice([1, 30]))})
    edges = [lowest, highest, *known]
    wanted = [chosen.choice([chosen.choice(edges), chosen.randint(lowest, highest)])
              for _ in range(200)]  # fmt: skip
    where = {number: place for place, number in enumerate(known)}
    types = [np.int64] + [np.int32] * (kind in ("close", "scattered"))
    for dtype in types:
        found = positions(np.array(known, dtype), np.array(wanted, dtype))
        assert found.tolist() == [where.get(number, -1) for number in wanted]
        assert positions(np.array([], dtype), np.array([1, 2], dtype)).tolist() == [-1, -1]
        assert positions(np.array([1, 2], dtype), np.array([], dtype)).tolist() == []


@each_row("seed", range(30))
def test_rows_that_ascend(seed: int) -> None:
    chosen = random.Random(seed)
    rows = [tuple(chosen.randrange(3) for _ in range(3)) for _ in range(chosen.randrange(4))]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    assert ascends(*columns) == (rows == sorted(rows))


@each_row("rows", [0, 1, 1 << 17, (1 << 17) + 1, 400_000])
def test_blocks_are_the_whole(rows: int) -> None:
    numbers = np.arange(rows)
    assert (by_blocks(rows, np.int64, lambda block: 2 * numbers[block]) == 2 * numbers).all()


def test_what_goes_wrong_in_a_block_is_not_lost() -> None:
    with pytest.raises(ZeroDivisionError):
        by_blocks(1 << 18, np.int64, lambda block: 1 // 0)
