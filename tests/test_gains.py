"""A gain is the same whichever side is called b, in whatever unit and order its steps come."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.ab.statistics import (
    Estimate,
    Interval,
    claimed,
    compare,
    compare_starts,
    effect_of_gain,
    floor,
)
from spark_prof.ab.timed_steps import (
    SETTLE,
    Block,
    Quad,
    TimedStep,
    block_order,
    make_quads,
    middle_mean,
    quads_within,
)
from tests.ab.timed import timed

FEW = settings(max_examples=8, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=80, deadline=None, derandomize=True, database=None)
TIMES = st.floats(50.0, 5000.0)


def quads_of(pairs: list[tuple[float, float]]) -> tuple[Quad, ...]:
    return tuple(Quad(n, a, b, 16, ()) for n, (a, b) in enumerate(pairs))


def turned(interval: Interval) -> tuple[float, float]:
    return 1 / interval.high, 1 / interval.low


def whole(estimate: Estimate) -> Interval:
    assert estimate.gain is not None
    return estimate.gain


@FEW
@given(st.lists(st.tuples(st.floats(1000.0, 1100.0), st.floats(900.0, 1000.0)), min_size=5,
                max_size=12))  # fmt: skip
def test_a_gain_turns_over_with_its_sides(pairs: list[tuple[float, float]]) -> None:
    there = compare(quads_of(pairs))
    back = compare(quads_of([(b, a) for a, b in pairs]))
    gain = whole(there)
    assert whole(back).value == pytest.approx(1 / gain.value)
    # Resamples are drawn by the place of a quad, which is another one here.
    assert (whole(back).low, whole(back).high) == pytest.approx(turned(gain), rel=0.03)
    assert gain.value == pytest.approx((there.a_us or 0) / (there.b_us or 1))
    assert gain.low < gain.value < gain.high
    ratios = [a / b for a, b in pairs]
    assert min(ratios) - 1e-9 <= gain.value <= max(ratios) + 1e-9
    assert compare(quads_of(pairs[::-1])).gain == gain
    longer = whole(compare(quads_of([(1e3 * a, 1e3 * b) for a, b in pairs])))
    # The clock's half microsecond is all that a longer step changes.
    assert longer.value == pytest.approx(gain.value)
    assert gain.low <= longer.low <= longer.high <= gain.high
    clock = gain.value * 0.5 / min(there.a_us or 0, there.b_us or 0)
    assert longer.low - gain.low == pytest.approx(0.999 * clock, rel=2e-3)


@FEW
@given(st.lists(TIMES, min_size=2, max_size=5), st.lists(TIMES, min_size=2, max_size=5))
def test_starts_turn_over_as_well(a_us: list[float], b_us: list[float]) -> None:
    there, back = compare_starts(a_us, b_us, 10), compare_starts(b_us, a_us, 10)
    gain, clock = whole(there), 0.5 / min(there.a_us or 1, there.b_us or 1)
    logs = [math.fsum(map(math.log, side)) / len(side) for side in (a_us, b_us)]
    assert gain.value == pytest.approx(math.exp(logs[0] - logs[1]))
    # Without the clock's share the interval is even on a logarithmic scale.
    low, high = gain.low / gain.value + clock, gain.high / gain.value - clock
    assert low * high == pytest.approx(1.0, rel=1e-6)
    assert whole(back).value == pytest.approx(1 / gain.value)
    assert there.quads == len(a_us) + len(b_us)
    assert there.apart == pytest.approx(max(max(a_us) / min(a_us), max(b_us) / min(b_us)) - 1)
    # Starts in the middle of b's add nothing to what starts are apart, and tell it better.
    more = whole(compare_starts(a_us, b_us, 10, other_b_us=[math.exp(logs[1])] * 3))
    assert more.value == pytest.approx(gain.value)
    assert more.high - more.low < (gain.high - gain.low) * (1 + 1e-9)


def test_one_start_of_a_side_is_enough_only_where_the_other_tells() -> None:
    assert compare_starts([1.0], [1.0, 2.0], 1).gain is None
    assert compare_starts([1.0], [1.0, 2.0], 1, fewest=1).gain is not None
    assert compare_starts([1.0], [1.0], 1, fewest=1).gain is None
    assert compare_starts([1.0], [1.0], 1, fewest=1, other_b_us=[1.1]).gain is not None
    assert [compare(quads_of([(2.0, 1.0)] * n)).gain is None for n in (4, 5)] == [True, False]


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_what_only_touches_the_floor_is_not_claimed(share: float) -> None:
    bound, less = 1 + share, 1 / (1 + share)
    assert claimed(bound, bound + 1, share) == (False, False)
    assert claimed(bound + 1e-9, bound + 1, share) == (True, False)
    assert claimed(0.5, less, share) == (False, False)
    assert claimed(0.5, less - 1e-9, share) == (False, True)
    assert effect_of_gain(None) == "not told"
    assert effect_of_gain(Interval(1.0, 1 / 1.02, 1.02)) == "no effect"
    assert effect_of_gain(Interval(1.0, 1 / 1.0201, 1.02)) == "not told"
    assert effect_of_gain(Interval(1.0, 1 / 1.02, 1.0201)) == "not told"
    assert floor(True, 0.1, False) == 0
    assert floor(True, 0.1, True) == 0.002
    assert floor(False, 0.1, True) == 0.1
    assert floor(False, 0.001, True) == 0.002


@MANY
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.integers(0, 10**9))
def test_the_middle_mean_is_of_the_middle_half(durations: list[int], far: int) -> None:
    ordered, quarter = sorted(durations), len(durations) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    assert middle_mean(durations) == pytest.approx(sum(middle) / len(middle))
    assert middle_mean(durations[::-1]) == middle_mean(durations)
    hiccups = [*ordered[: len(ordered) - quarter], *([10**6 + far] * quarter)]
    assert middle_mean(hiccups) == pytest.approx(middle_mean(durations))


@MANY
@given(st.floats(0.1, 500), st.floats(1e-4, 0.5), st.integers(3, 40))
def test_the_quads_of_a_time_fit_it_and_no_two_more_do(
    seconds: float, step: float, steps: int
) -> None:
    quads = quads_within(seconds, step, steps)
    assert quads % 2 == 0
    assert 2 <= quads <= 1024
    assert quads == 2 or quads * 4 * steps * step <= seconds * (1 + 1e-9)
    assert quads == 1024 or (quads + 2) * 4 * steps * step > seconds * (1 - 1e-9)


def test_the_fewest_of_a_plan() -> None:
    assert len(block_order(1, SETTLE + 1)) == 4
    step = TimedStep(0, "a", SETTLE, 1, 1, 0, 1, 1)
    assert SETTLE == 2
    for index, duration in ((0, 5), (1, 5), (2, 0), (2, 1), (9, -1)):
        own = TimedStep(0, "a", index, duration, 1, 0, 1, 1)
        assert own.counts is (index >= 2 and duration > 0)
    assert step.counts


@pytest.mark.parametrize("steps", [SETTLE + 3, SETTLE + 4, SETTLE + 9])
def test_a_quad_needs_four_steps_that_count_of_each_block(steps: int) -> None:
    plan = block_order(2, steps)
    quads, dropped = make_quads(timed(plan, lambda side, place, index: 3000.0))
    assert bool(quads) is (steps >= SETTLE + 4)
    assert len(quads) + len(dropped) == 2
    assert all(quad.steps == 4 * (steps - SETTLE) for quad in quads)


def test_contexts_may_be_one_per_cent_apart_and_no_more() -> None:
    plan = [Block(side, 10) for side in "abba"]
    for apart, counts in ((9, True), (11, False)):
        rows = [
            TimedStep(*(getattr(row, name) for name in ("block", "side", "index", "duration_ns",
                                                        "end_ns", "prefill_tokens",
                                                        "decode_requests")),
                      1000 - (apart if row.side == "b" else 0))
            for row in timed(plan, lambda side, place, index: 3000.0)
        ]  # fmt: skip
        assert bool(make_quads(rows)[0]) is counts
    assert replace(plan[0], side="b") == plan[1]
