"""The printed effect is found in four runs out of five, by the functions of a real run."""

from __future__ import annotations

import math

import pytest

from benchmarks.ab_power import Design, Found, measured
from spark_prof.ab.statistics import Spread, minimum_effect
from tests.rows import each_row

RUNS = 100


def four_errors(share: float) -> float:
    """Beyond that a share of that many runs lies once in 16,000 times."""
    return 4 * math.sqrt(share * (1 - share) / RUNS)


@each_row(
    "design",
    [
        Design("H100, gpt-oss, batch 1", 20),
        Design("H100, gpt-oss, batch 8", 20, tests=2),
        Design("vllm bench serve", 20),
        Design("hiccups", 20),
        Design("", 4, spread=0.01),
        Design("", 8, spread=0.002),
    ],
)
def test_the_printed_effect_has_the_power_that_is_promised(design: Design) -> None:
    found = measured(design, RUNS, seed=1)
    assert found.power is not None
    assert 0.75 - four_errors(0.75) <= found.power <= 0.85 + four_errors(0.85)
    assert found.false <= 0.05 + four_errors(0.05)
    assert found.coverage >= 0.93 - four_errors(0.93)


def test_no_effect_is_printed_where_disturbed_quads_decide() -> None:
    for design in (Design("stalls", 30), Design("frequent stalls", 30), Design("white", 19)):
        found: Found = measured(design, 40, seed=1)
        assert found.printed is None


def test_fewer_starts_and_more_tests_need_a_larger_effect() -> None:
    """Beside a table: noncentral t with 2 and 38 degrees of freedom needs 5.65 and 2.88."""
    for free, quantile, median, needed in ((2, 4.303, 0.8326, 5.65), (38, 2.024, 0.9912, 2.876)):
        wide = 0.001 * quantile * median
        assert minimum_effect(Spread(wide, free)) == pytest.approx(0.001 * needed, rel=0.02)
    run = Spread(0.01, 30)
    alone, tested = minimum_effect(run), minimum_effect(run, [run, run])
    assert alone < tested < 1.15 * alone
    assert minimum_effect(run, [Spread(0.01, 30, off=0.05)]) > alone + 0.05
