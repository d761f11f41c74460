"""Who held the others up: sums over groups of steps keep what the steps say."""

from __future__ import annotations

import numpy as np
import pytest

from spark_prof.analyzers.model import SlowStep
from spark_prof.analyzers.views.step_series import held_up
from tests.rows import each_row


def slow(step: int, slowest: int | None, us: float, stage: int = 0) -> SlowStep:
    return SlowStep(step, stage, 0, slowest, us, us)


@each_row("number", [1, 59, 60, 61, 1000])
def test_groups_hold_every_step_once(number: int) -> None:
    rng = np.random.default_rng(number)
    steps = [slow(10 + n, int(rng.integers(0, 4)), float(rng.uniform(1, 9))) for n in range(number)]
    found = held_up(steps, [0, 1, 2, 3])
    assert found.us.shape == (4, min(number, 60))
    assert found.last.sum() == number
    sizes = found.last_step - found.first_step + 1
    assert sizes.sum() == number
    for rank in {step.slowest for step in steps if step.slowest is not None}:
        own = sum(step.held_up_us for step in steps if step.slowest == rank)
        assert float((found.us[rank] * sizes).sum()) == pytest.approx(own)
    assert found.leads == (0, 0, 0, 0)


def test_the_worst_step_of_a_cell_is_named() -> None:
    steps = [slow(n, 1, 100.0 if n == 77 else 1.0) for n in range(120)]
    found = held_up(steps, [0, 1])
    row, group = np.unravel_index(int(found.us.argmax()), found.us.shape)
    assert (row, found.worst[row, group]) == (1, 77)
    assert (found.worst[0] == -1).all()


def test_stages_have_steps_of_their_own() -> None:
    steps = [slow(n, 0, 4.0) for n in range(10)] + [slow(n, 3, 8.0, stage=1) for n in range(10)]
    found = held_up(steps, [0, 1, 2, 3])
    assert found.leads == (0, 0, 2, 2)
    assert found.us[0].tolist() == [4.0] * 10
    assert found.us[3].tolist() == [8.0] * 10
    # Nobody named, and nothing at all.
    assert held_up([slow(1, None, 0.0)], [0, 1]).last.sum() == 0
    assert held_up([], [0, 1]).us.shape == (2, 0)
