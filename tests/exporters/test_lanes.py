"""Lanes: no two intervals of one overlap, and nothing is lost."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from spark_prof.exporters.trace_events import lanes
from tests.rows import each_row


@each_row("longest", [0, 1, 5, 100])
@each_row("nested", [False, True])
def test_within_a_lane_nothing_overlaps(nested: bool, longest: int) -> None:
    rng = np.random.default_rng(longest)
    start = np.sort(rng.integers(0, 1000, 300))
    end = start + rng.integers(0, longest + 1, 300)
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    found = lanes(start, end, nested=nested)
    assert len(found) == len(start)
    for a, b in combinations(range(len(start)), 2):
        apart = start[b] >= end[a]
        assert found[a] != found[b] or apart or (nested and end[b] <= end[a])


def test_as_many_lanes_as_run_at_once_and_no_more() -> None:
    # Each of the chain overlaps the one before it: two lanes do for all of them.
    start = np.arange(0, 1000, 10)
    assert set(lanes(start, start + 11)) == {0, 1}
    assert set(lanes(start, start + 10)) == {0}
    assert set(lanes(start, start + 21)) == {0, 1, 2}


def test_a_million_at_once_take_bounded_time() -> None:
    start = np.arange(20_000)
    found = lanes(start, start + 1_000_000)
    assert len(np.unique(found)) == len(start)
