"""What tracing adds to a gap: taken off all of them, it makes up the excess and no more."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spark_prof.analyzers.comparing.swapped_steps import tracing_cost, without_tracing
from tests.rows import each_row


@each_row(
    ("gaps", "excess", "cost"),
    [
        ([500] * 10, 4000, 400),
        ([500] * 10 + [0] * 90, 4000, 400),
        ([100, 900], 1000, 900),
        ([100, 900], 999, 899),
        ([100, 900], 300, 200),
        ([100, 900], 50, 25),
        ([100, 900], 5000, 900),
        ([100, 900], 0, 0),
        ([100, 900], -20, 0),
        ([0, 0], 100, 0),
        ([], 100, 0),
    ],
)
def test_the_cost_of(gaps: list[int], excess: float, cost: float) -> None:
    assert tracing_cost(np.array(gaps, np.int64), excess) == pytest.approx(cost)


@each_row("seed", range(50))
def test_what_is_taken_off_is_the_excess(seed: int) -> None:
    chosen = random.Random(seed)
    gaps = np.array([chosen.randrange(2000) for _ in range(chosen.randrange(1, 200))], np.int64)
    excess = chosen.uniform(0, 1.2 * float(gaps.sum()))
    left = without_tracing(gaps, tracing_cost(gaps, excess))
    assert (left >= 0).all()
    assert float(gaps.sum() - left.sum()) == pytest.approx(min(excess, gaps.sum()), abs=1e-6)
