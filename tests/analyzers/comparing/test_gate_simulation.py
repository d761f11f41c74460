"""Intervals and the gate over many made recordings, as in benchmarks/compare_gate.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.compare_gate import COVERAGE, FALSE_ALARMS, Pool, cell, part_pools, step_pools
from tests.rows import each_row

RUNS = 400


@pytest.fixture(scope="module")
def pools() -> Sequence[Pool]:
    return step_pools(np.random.default_rng(11), 30)


def slack(share: float, runs: int = RUNS) -> float:
    """What chance adds to a share of this many comparisons in fewer than 1 of 10,000 cases."""
    return 3.9 * math.sqrt(share * (1 - share) / runs)


@each_row("recordings", [1, 3, 5])
@each_row("sd", [0.0, 0.015])
def test_the_interval_holds_the_effect_and_what_is_within_never_fails(
    pools: Sequence[Pool], sd: float, recordings: int
) -> None:
    random = np.random.default_rng(12)
    for effect in (0.0, 0.03, 0.10):
        found = cell(random, pools, RUNS, sd, recordings, effect)
        assert found.covered >= COVERAGE - slack(COVERAGE)
        if effect <= 0.03:
            assert found.share("failed") <= FALSE_ALARMS + slack(FALSE_ALARMS)


def test_what_is_slower_is_found(pools: Sequence[Pool]) -> None:
    random = np.random.default_rng(13)
    assert cell(random, pools, RUNS, 0.015, 1, 1.0).share("failed") == 1
    assert cell(random, pools, RUNS, 0.01, 1, 0.10).share("failed") > 0.7
    assert cell(random, pools, RUNS, 0.005, 5, 0.05).share("failed") > 0.7
    assert cell(random, pools, RUNS, 0.0, 3, 0.035).share("failed") > 0.5
    assert cell(random, pools, RUNS, 0.005, 5, 0.0).share("passed") > 0.8


def test_starts_that_move_all_kernels_together_make_none_certain() -> None:
    random = np.random.default_rng(14)
    for parts in part_pools(random, 12).values():
        for recordings in (1, 3):
            # The rows of one comparison share their starts, so that its runs are what counts.
            found = cell(random, parts, 60, 0.015, recordings, 0.0, 0.004)
            assert found.covered >= COVERAGE - slack(COVERAGE, 60)
