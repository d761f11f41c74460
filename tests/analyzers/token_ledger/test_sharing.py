"""Clocks that share the time among what runs at once."""

from __future__ import annotations

import numpy as np

from spark_prof.analyzers.token_ledger.sharing import clocks_of


def test_two_that_overlap() -> None:
    clocks = clocks_of(np.array([0, 40]), np.array([60, 100]))
    shared, lone = clocks.at(np.array([0, 40, 60, 100]))
    assert shared.tolist() == [0, 40, 50, 90]
    assert lone.tolist() == [0, 40, 40, 80]


def test_clocks_stand_while_nothing_runs() -> None:
    clocks = clocks_of(np.array([0, 50]), np.array([10, 60]))
    shared, lone = clocks.at(np.array([10, 30, 50, 500]))
    assert shared.tolist() == lone.tolist() == [10, 10, 10, 20]


def test_one_that_takes_no_time_takes_no_part() -> None:
    clocks = clocks_of(np.array([0, 5]), np.array([10, 5]))
    shared, lone = clocks.at(np.array([5, 10]))
    assert shared.tolist() == lone.tolist() == [5, 10]


def test_the_parts_of_each() -> None:
    # The long one ends last, after two that started later.
    shared, alone = clocks_of(np.array([0, 20, 60]), np.array([100, 40, 80])).parts()
    assert shared.tolist() == [80, 10, 10]
    assert alone.tolist() == [60, 0, 0]


def test_many_at_once_share_evenly() -> None:
    clocks = clocks_of(np.zeros(8, np.int64), np.full(8, 80, np.int64))
    shared, lone = clocks.at(np.array([80]))
    assert (shared.tolist(), lone.tolist()) == ([10], [0])
