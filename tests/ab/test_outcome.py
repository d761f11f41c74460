"""What results come to: a gain counts by its whole interval, and beyond the floor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.ab.result import (
    AARun,
    SideComparison,
    chosen_run,
    detectable_in,
    effect_of,
    exit_code,
    floor_of,
    outcome_of,
    with_detectable,
)
from spark_prof.ab.statistics import CAPTURES_APART, Interval, aa_test
from tests.dashboards.ab_sample import AB_SAMPLES, FASTER, gain_of
from tests.rows import each_row

RUN = FASTER.runs[0]
[ITSELF] = FASTER.aa


def run_with(low: float, high: float) -> SideComparison:
    gain = Interval((low + high) / 2, low, high)
    return replace(RUN, estimate=replace(RUN.estimate, gain=gain))


def itself(floor: float | None, requests: int = 1, passed: bool = False) -> AARun:
    return AARun(requests, replace(ITSELF.test, floor=floor, passed=passed))


@each_row(
    ("low", "high", "floor", "effect"),
    [
        (1.01, 1.02, 0.0, "faster"), (1.01, 1.02, None, "faster"), (0.99, 1.02, None, "no effect"),
        (1.01, 1.02, 0.015, "no effect"), (1.02, 1.03, 0.015, "faster"),
        (0.97, 0.98, 0.015, "slower"), (0.97, 0.99, 0.015, "not told"),
        (0.99, 1.021, None, "not told"), (0.979, 1.01, None, "not told"),
        *((gain / 1.0001, gain * 1.0001, floor, "faster" if gain / 1.0001 > 1 + floor else
           "no effect" if gain < 1.02 else "not told")
          for gain in (1.0005, 1.005, 1.05, 1.5) for floor in (0.001, 0.01, 0.1)),
    ],
)  # fmt: skip
def test_an_effect_counts_beyond_the_floor(
    low: float, high: float, floor: float | None, effect: str
) -> None:
    """Who changes the sides' names changes faster to slower, and nothing else."""
    turned = {"faster": "slower", "slower": "faster"}
    assert effect_of(run_with(low, high), [itself(floor)]) == effect
    assert effect_of(run_with(1 / high, 1 / low), [itself(floor)]) == turned.get(effect, effect)


def test_the_floor_is_that_of_the_same_batch_else_the_furthest() -> None:
    found = [itself(0.01, 1), itself(0.02, 8), itself(None, 4)]
    assert floor_of(replace(RUN, requests=8), found) == 0.02
    assert floor_of(replace(RUN, requests=1), found) == 0.01
    assert floor_of(replace(RUN, requests=4), found) == 0.02
    assert floor_of(RUN, []) is None


def test_the_smallest_batch_with_a_gain_answers() -> None:
    one, eight, sixteen, prompts = FASTER.runs
    nothing = replace(one, estimate=replace(one.estimate, gain=None))
    assert chosen_run(replace(FASTER, runs=(prompts, sixteen, eight, one))) == one
    assert chosen_run(replace(FASTER, runs=(nothing, prompts, eight))) == eight
    assert chosen_run(replace(FASTER, runs=(nothing, prompts))) == prompts
    assert chosen_run(replace(FASTER, runs=(nothing,))) == nothing
    assert chosen_run(replace(FASTER, runs=())) is None


@each_row(
    ("sample", "outcome", "code"),
    [
        ("ab_faster", "faster", 0),
        ("ab_gate_failed", "gate failed", 1),
        ("ab_no_effect_no_gpu", "no effect", 0),
        ("ab_quantized_two_engines", "faster", 0),
        ("ab_not_live", "not live", 0),
        ("ab_ended_early", "not told", 2),
        ("ab_too_few_quads", "not told", 0),
    ],
)
def test_outcomes_and_exit_codes(sample: str, outcome: str, code: int) -> None:
    result = AB_SAMPLES[sample]
    assert (outcome_of(result), exit_code(result)) == (outcome, code)


def test_a_failed_gate_counts_more_than_an_early_end_and_one_live_swap_is_told() -> None:
    assert exit_code(replace(AB_SAMPLES["ab_gate_failed"], failure="the engine ended")) == 1
    dead = AB_SAMPLES["ab_not_live"]
    [rank] = dead.swaps
    some = replace(rank, swaps=(*rank.swaps, FASTER.swaps[0].swaps[0]))
    assert outcome_of(replace(dead, swaps=(some,))) == "no effect"
    # Without the engine's report nothing is concluded.
    assert outcome_of(replace(dead, swaps=())) == "no effect"


def test_a_test_that_passed_forbids_nothing_but_what_another_capture_changes() -> None:
    passed = itself(0.015, passed=True)
    assert effect_of(run_with(1.001, 1.002), [passed]) == "faster"
    again = replace(passed, captured_again=True)
    assert floor_of(RUN, [again]) == CAPTURES_APART
    assert effect_of(run_with(1.001, 1.002), [again]) == "no effect"
    assert effect_of(run_with(0.998, 0.999), [again]) == "no effect"
    assert effect_of(run_with(1.003, 1.004), [again]) == "faster"


def test_a_floor_makes_the_detectable_effect_larger() -> None:
    alone = detectable_in(RUN, [])
    assert alone is not None
    failed = aa_test(gain_of(2700.0 * 1.05, 2700.0, 0.002))
    again = AARun(1, replace(ITSELF.test, passed=True), captured_again=True)
    assert detectable_in(RUN, [ITSELF]) == pytest.approx(alone, rel=0.1)
    for tests, floor in (([again], CAPTURES_APART), ([AARun(1, failed)], 0.052)):
        found = detectable_in(RUN, tests)
        assert found is not None
        assert alone / 2 + floor < found < 1.5 * alone + floor
    assert with_detectable(RUN, [again]).estimate.detectable == detectable_in(RUN, [again])
