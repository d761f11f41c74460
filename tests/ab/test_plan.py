"""The order of blocks."""

from __future__ import annotations

import pytest

from spark_prof.ab.steps import SETTLE, block_order, quads_within
from spark_prof.errors import CommandError
from tests.rows import each_row


def test_quads_are_abba_or_baab() -> None:
    plan = block_order(64, 5)
    fours = {"".join(block.side for block in plan[i : i + 4]) for i in range(0, 256, 4)}
    assert fours == {"abba", "baab"}
    assert {block.steps for block in plan} == {5}


def test_the_sides_are_named() -> None:
    assert [block.side for block in block_order(1, 9, ("a", "a2"))] == ["a", "a2", "a2", "a"]


@each_row(("quads", "power"), [(1, 1), (2, 2), (4, 3), (8, 4), (6, 2), (12, 3), (50, 2)])
def test_drift_cancels(quads: int, power: int) -> None:
    plan = block_order(quads, 7)
    sums = {"a": 0, "b": 0}
    place = 0
    for block in plan:
        for _ in range(block.steps):
            sums[block.side] += place**power
            place += 1
    assert sums["a"] == sums["b"]


def test_alternating_sides_would_not_cancel_it() -> None:
    order = "ab" * 4
    assert sum(i for i, side in enumerate(order) if side == "a") != sum(
        i for i, side in enumerate(order) if side == "b"
    )


@each_row(
    ("seconds", "step", "steps", "quads"),
    [(8.0, 0.001, 20, 100), (8.0, 0.00101, 20, 98), (0.1, 0.1, 20, 2), (1e9, 1e-6, 3, 1024)],
)
def test_quads_of_a_time(seconds: float, step: float, steps: int, quads: int) -> None:
    assert quads_within(seconds, step, steps) == quads


@each_row(("seconds", "step"), [(0.0, 0.1), (-1.0, 0.1), (1.0, 0.0), (1.0, -1.0)])
def test_no_time_is_the_fewest_quads(seconds: float, step: float) -> None:
    assert quads_within(seconds, step, 20) == 2


@each_row(("quads", "steps"), [(0, 20), (-1, 20), (4, SETTLE), (4, 0)])
def test_nothing_to_plan_is_refused(quads: int, steps: int) -> None:
    with pytest.raises(CommandError, match="cannot be measured"):
        block_order(quads, steps)
