"""The same step on several ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pandas as pd

from spark_prof.analyzers.ranks.align_ranks import join_steps
from tests.rows import each_row


def steps(keys: Sequence[int], first: int = 0) -> pd.DataFrame:
    return pd.DataFrame({"step": range(first, first + len(keys)), "key": keys}).astype("int64")


def joined(*ranks: pd.DataFrame) -> list[list[int]]:
    found: list[list[int]] = join_steps(dict(enumerate(ranks))).to_numpy().tolist()
    return found


def test_numbers_may_differ() -> None:
    assert joined(steps([5, 6, 7]), steps([6, 7], first=40)) == [[1, 40], [2, 41]]


def test_a_step_that_one_rank_lacks_is_left_out() -> None:
    assert joined(steps([5, 6, 7]), steps([5, 7]), steps([5, 6, 7])) == [[0, 0, 0], [2, 1, 2]]


def test_a_key_that_comes_back_needs_its_neighbours() -> None:
    assert joined(steps([1, 9, 2, 9, 3]), steps([1, 9, 2, 9, 3])) == [[i, i] for i in range(5)]
    # One 9 too few: it cannot be told which of the two it is, except by what lies around it.
    assert joined(steps([1, 9, 9, 3]), steps([1, 9, 3])) == [[0, 0], [3, 2]]
    assert joined(steps([1, 9, 2, 9, 3]), steps([1, 2, 9, 3])) == [[0, 0], [2, 1], [3, 2], [4, 3]]


def test_order_is_kept() -> None:
    assert joined(steps([1, 2, 3, 4]), steps([4, 1, 2, 3])) == [[0, 1], [1, 2], [2, 3]]


def test_nothing_in_common() -> None:
    assert joined(steps([1, 2]), steps([3])) == []
    assert joined(steps([1, 2]), steps([])) == []
    assert joined(steps([]), steps([])) == []


@each_row("seed", range(20))
def test_what_is_joined_is_the_same_step(seed: int) -> None:
    """Of steps with known identity, some lost on each rank, none is joined with another one."""
    dice = random.Random(seed)
    run = [(number, dice.randrange(30)) for number in range(60)]
    kept = [[step for step in run if dice.random() > 0.1] for _ in range(3)]
    table = join_steps({r: steps([key for _, key in k]) for r, k in enumerate(kept)})
    for row in table.itertuples(index=False):
        keys = {kept[rank][place][1] for rank, place in enumerate(row)}
        assert len(keys) == 1
    assert all(table[rank].is_monotonic_increasing for rank in table)


@each_row("seed", range(20))
def test_every_step_with_a_key_of_its_own_is_found(seed: int) -> None:
    dice = random.Random(seed)
    run = dice.sample(range(10_000), 50)
    kept = [[key for key in run if dice.random() > 0.2] for _ in range(3)]
    table = join_steps({rank: steps(keys) for rank, keys in enumerate(kept)})
    common = [key for key in run if all(key in keys for keys in kept)]
    assert [kept[0][place] for place in table[0]] == common
