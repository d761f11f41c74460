"""Unions against a brute force that looks at every nanosecond."""

from __future__ import annotations

import random

import numpy as np

from spark_prof.analyzers.step_accounting import covered_in, union_by_group
from tests.rows import each_row

FAR = 1_800_000_000_000_000_001


def _array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _random_intervals(seed: int) -> list[tuple[int, int, int]]:
    chosen = random.Random(seed)
    found = []
    for _ in range(chosen.randrange(1, 40)):
        start = chosen.randrange(150)
        found.append((start, start + chosen.choice([0, 1, 5, 60]), chosen.randrange(5)))
    return found


@each_row("origin", [0, FAR])
@each_row("seed", range(25))
def test_union_by_group(seed: int, origin: int) -> None:
    intervals = _random_intervals(seed)
    start, end, group = np.array(intervals, np.int64).T
    found = union_by_group(start + origin, end + origin, group, 6)
    # The one that began first has the moment, of equal ones the first of the list.
    owners: dict[int, int] = {}
    for begin, finish, own in sorted(intervals, key=lambda interval: interval[0]):
        for moment in range(begin, finish):
            owners.setdefault(moment, own)
    wanted = [sum(own == number for own in owners.values()) for number in range(6)]
    assert found.tolist() == wanted
    assert found.sum() == len({m for begin, finish, _ in intervals for m in range(begin, finish)})
    assert found.dtype == np.int64


@each_row("origin", [0, FAR])
@each_row("seed", range(25))
def test_covered_in(seed: int, origin: int) -> None:
    intervals = _random_intervals(seed)
    start, end, _ = np.array(intervals, np.int64).T
    moments = {moment for begin, finish, _ in intervals for moment in range(begin, finish)}
    windows = [(begin, begin + length) for begin in range(-10, 220, 7) for length in (0, 1, 30)]
    begin, finish = np.array(windows, np.int64).T
    found = covered_in(start + origin, end + origin, begin + origin, finish + origin)
    assert found.tolist() == [len(moments & set(range(*window))) for window in windows]


def test_nothing_covers_nothing() -> None:
    assert union_by_group(_array(), _array(), _array(), 3).tolist() == [0, 0, 0]
    assert covered_in(_array(), _array(), _array(0, 5), _array(9, 9)).tolist() == [0, 0]


def test_a_group_far_from_the_others_does_not_overflow() -> None:
    # A million steps in ten hours.
    steps = np.arange(0, 1_000_000, 1000)
    start = FAR + steps * 36_000_000
    assert set(union_by_group(start, start + 7, steps, 1_000_000)[steps]) == {7}


def test_a_union_is_exact_beyond_the_precision_of_floats() -> None:
    assert union_by_group(_array(FAR), _array(FAR + 3), _array(0), 1).tolist() == [3]
    assert covered_in(
        _array(FAR, FAR + 2), _array(FAR + 1, FAR + 3), _array(FAR), _array(FAR + 5)
    ).tolist() == [2]


def test_a_time_that_cannot_be_is_no_crash() -> None:
    start, end = _array(0, 0, 10), _array(3, 2**63 - 1, 12)
    assert union_by_group(start, end, _array(0, 1, 2), 3)[0] == 3
