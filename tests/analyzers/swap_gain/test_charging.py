"""Every instant is charged once: the charges add up to the span, however kernels overlap."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spark_prof.analyzers.comparing.kernel_time import charge
from spark_prof.analyzers.step_accounting import union_by_group
from tests.rows import each_row


def charges(*spans: tuple[int, int]) -> list[tuple[int, int]]:
    """Busy and gap of each."""
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    found = charge(start, end)
    return list(zip(found.busy.tolist(), found.gap.tolist(), strict=True))


@each_row(
    ("spans", "wanted"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(5, 9)], [(4, 0)], id="one"),
        pytest.param([(0, 10), (12, 20)], [(10, 0), (8, 2)], id="a gap before the second"),
        pytest.param([(0, 10), (4, 25)], [(10, 0), (15, 0)], id="started early, then waited"),
        pytest.param([(0, 10), (2, 6)], [(10, 0), (0, 0)], id="one inside another"),
        pytest.param([(0, 10), (0, 10)], [(10, 0), (0, 0)], id="twins"),
        pytest.param([(0, 30), (5, 15), (20, 50), (60, 70)],
                     [(30, 0), (0, 0), (20, 0), (10, 10)], id="what runs elsewhere is no gap"),
        pytest.param([(0, 10), (15, 12), (20, 30)], [(10, 0), (0, 5), (10, 5)],
                     id="an end before its start"),
    ],
)  # fmt: skip
def test_the_charges_of(spans: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
    assert charges(*spans) == wanted


@each_row("seed", range(50))
def test_charges_add_up_to_the_span_and_gaps_to_what_is_idle(seed: int) -> None:
    chosen = random.Random(seed)
    longest = chosen.choice((1, 10, 200))
    start = np.sort([chosen.randrange(1000) for _ in range(chosen.randrange(1, 60))])
    end = start + np.array([chosen.randrange(longest + 1) for _ in start])
    found = charge(start, end)
    assert int((found.busy + found.gap).sum()) == int(end.max() - start.min())
    union = union_by_group(start, end, np.zeros(len(start), np.int64), 1)[0]
    assert int(found.busy.sum()) == int(union)
    assert ((found.busy >= 0) & (found.busy <= end - start)).all()
    assert (found.gap >= 0).all()
