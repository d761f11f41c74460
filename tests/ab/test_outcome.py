"""What results come to: a gain counts by its whole interval, beyond what a differs from itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.ab.outcome import (
    chosen_run,
    detectable_in,
    effect_of,
    exit_code,
    floor_of,
    outcome_of,
)
from spark_prof.ab.result import AARun, Run
from spark_prof.ab.statistics import Interval, compare_starts
from tests.dashboards.ab_sample import AB_SAMPLES, FASTER

RUN = FASTER.runs[0]
[ITSELF] = FASTER.aa


def run_with(low: float, high: float) -> Run:
    gain = Interval((low + high) / 2, low, high)
    return replace(RUN, estimate=replace(RUN.estimate, gain=gain))


def itself(floor: float | None, requests: int = 1) -> AARun:
    return AARun(requests, replace(ITSELF.test, floor=floor))


@pytest.mark.parametrize(
    ("low", "high", "floor", "effect"),
    [
        (1.01, 1.02, 0.0, "faster"),
        (1.01, 1.02, None, "faster"),
        (0.99, 1.02, None, "no effect"),
        (1.01, 1.02, 0.015, "no effect"),
        (1.02, 1.03, 0.015, "faster"),
        (0.97, 0.98, 0.015, "slower"),
        (0.97, 0.99, 0.015, "no effect"),
    ],
)
def test_an_effect_counts_beyond_the_floor(
    low: float, high: float, floor: float | None, effect: str
) -> None:
    assert effect_of(run_with(low, high), [itself(floor)]) == effect


@pytest.mark.parametrize("floor", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("gain", [1.0005, 1.005, 1.05, 1.5])
def test_the_sides_are_treated_alike(gain: float, floor: float) -> None:
    """Who changes the sides' names changes faster to slower, and nothing else."""
    low, high = gain / 1.0001, gain * 1.0001
    turned = {"faster": "slower", "no effect": "no effect"}
    first = effect_of(run_with(low, high), [itself(floor)])
    assert effect_of(run_with(1 / high, 1 / low), [itself(floor)]) == turned[first]


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


@pytest.mark.parametrize(
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


def test_a_failed_gate_counts_more_than_an_early_end() -> None:
    assert exit_code(replace(AB_SAMPLES["ab_gate_failed"], failure="the engine ended")) == 1


def test_one_live_swap_is_enough_to_be_told() -> None:
    dead = AB_SAMPLES["ab_not_live"]
    [rank] = dead.swaps
    some = replace(rank, swaps=(*rank.swaps, FASTER.swaps[0].swaps[0]))
    assert outcome_of(replace(dead, swaps=(some,))) == "no effect"
    # Without the engine's report nothing is concluded.
    assert outcome_of(replace(dead, swaps=())) == "no effect"


def test_the_smallest_effect_is_no_less_than_a_differs_from_itself() -> None:
    alone = RUN.estimate.detectable
    assert alone is not None
    assert detectable_in(RUN, []) == alone
    assert detectable_in(RUN, [itself(2 * alone)]) == 2 * alone
    assert detectable_in(RUN, [itself(alone / 2)]) == alone


@pytest.mark.parametrize(
    ("a_us", "b_us", "effect"),
    [
        ((100.0, 101.0), (50.0, 50.5), "faster"),
        ((50.0, 50.5), (100.0, 101.0), "slower"),
        # Starts of side a differ by more than the whole interval is from 1.
        ((126.0, 140.0, 127.0, 139.0), (118.0, 119.0, 118.5, 118.6), "no effect"),
    ],
)
def test_starts_that_differ_from_each_other_are_no_effect(
    a_us: tuple[float, ...], b_us: tuple[float, ...], effect: str
) -> None:
    found = compare_starts(a_us, b_us, 100)
    assert found.gain is not None
    assert found.gain.low > 1 or found.gain.high < 1
    assert effect_of(Run("decode", 1, 128, found), ()) == effect
