"""Every instant is attributed once, to a kernel whose name stays; how sure figures of steps are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.compare_gate import COVERAGE, FALSE_ALARMS, Pool, cell, part_pools, step_pools
from spark_prof.analyzers.comparing.noise import (
    Change,
    Figure,
    change,
    figure_of,
    interval_of,
    stretch_of,
)
from spark_prof.analyzers.comparing.swapped_steps import attributed, stable_name, typical_step
from spark_prof.analyzers.t_distribution import student_quantile
from tests.rows import each_row


def steps(random: np.random.Generator, count: int, alike: float, spread: float) -> np.ndarray:
    """Times around 1000 us; each is `alike` of its neighbour's difference and else its own."""
    noise = random.normal(size=count)
    drift = np.empty(count)
    drift[0] = noise[0]
    for place in range(1, count):
        drift[place] = alike * drift[place - 1] + math.sqrt(1 - alike**2) * noise[place]
    return 1000 * (1 + spread * drift)


def test_a_hiccup_moves_no_median() -> None:
    random = np.random.default_rng(8)
    values = steps(random, 60, 0.0, 0.001)
    before = figure_of(values, "median", 0.0)
    values[30] *= 20
    after = figure_of(values, "median", 0.0)
    assert after.value == pytest.approx(before.value, rel=1e-3)
    assert after.error < 3 * before.error + 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_three_steps_nothing_is_known(count: int) -> None:
    few, many = figure_of(np.full(count, 5.0), "median", 0.0), figure_of(np.ones(9), "mean", 0)
    found = change([few], [many])
    assert (found.low, found.high, found.sure) == (-math.inf, math.inf, False)


def test_a_share_of_nothing() -> None:
    assert Change(0, 5, 5, 4, 6).share(5) == math.inf
    assert Change(0, 0, 0, 0, 0).share(0) == 0
    assert Change(100, 103, 3, 2, 4).share(3) == pytest.approx(0.03)


def figures(*values: float, error: float = 0.0, start: float = 0.015) -> list[Figure]:
    return [Figure(value, error, 50.0, start=start * value) for value in values]


def test_of_several_recordings_starts_are_estimated() -> None:
    """Welch's t, by hand: 3 a side with the same variance have 4 degrees of freedom."""
    found = change(figures(99, 100, 101), figures(109, 110, 111))
    assert found.us == pytest.approx(10)
    assert found.high - found.us == pytest.approx(2.776 * math.sqrt(2 / 3), rel=2e-3)


def test_two_recordings_tell_no_less_than_one() -> None:
    """By hand: variances of 2 and of 0, beside each as two more recordings the assumed 1.5 %."""
    one, two = change(figures(100), figures(100)), change(figures(99, 101), figures(100, 100))
    assumed = 1.5**2 * (99**2 + 101**2) / 2 / 100**2
    own, other = (2 + 2 * assumed) / 3 / 2, 2 * 1.5**2 / 3 / 2
    free = (own + other) ** 2 / (own**2 / 3 + other**2 / 3)
    least, most = (student_quantile(0.975, n) * math.sqrt(own + other)
                   for n in (math.ceil(free), math.floor(free)))  # fmt: skip
    assert 0.999 * least <= two.high - two.us <= 1.001 * most
    assert two.high - two.us < one.high - one.us
    random = np.random.default_rng(15)
    for spread in (0.3, 1.0, 1.5):
        widths = []
        for _ in range(300):
            a, b = (figures(*(100 + spread * random.normal(size=2))) for _ in range(2))
            found = change(a, b)
            widths.append(found.high - found.low)
        assert np.mean(widths) < one.high - one.low
    # Starts that are seen to lie far apart are believed.
    far = change(figures(90, 110), figures(90, 110))
    assert far.high - far.low > one.high - one.low


def test_the_interval_is_never_narrower_than_what_varies_within() -> None:
    found = change(figures(100, 100, 100, error=3.0), figures(100, 100, 100, error=3.0))
    assert found.high == pytest.approx(1.96 * math.sqrt(2 * 9 / 3), rel=0.02)


def test_one_recording_against_several_keeps_what_is_assumed() -> None:
    alike = change(figures(100), figures(100, 100, 100))
    assert alike.high == pytest.approx(1.96 * 1.5, rel=0.01)
    # Starts that are seen to differ by more are taken to do so on both sides.
    apart = change(figures(100), figures(90, 100, 110))
    assert apart.high > 1.96 * math.hypot(10, 10 / math.sqrt(3))
    assert change(figures(90, 100, 110), figures(100)).high == pytest.approx(apart.high, rel=0.01)


def test_the_interval_of_a_share_holds_0_where_that_of_the_difference_does() -> None:
    random = np.random.default_rng(10)
    for _ in range(200):
        a, b = (figures(*(100 + 3 * random.normal(size=3))) for _ in range(2))
        found = change(a, b)
        low, high = found.shares
        assert (low > 0) == (found.low > 0)
        assert (high < 0) == (found.high < 0)
    assert change(figures(0, 0), figures(1, 2)).shares[1] == math.inf
    assert change(figures(-1, 30), figures(1, 2)).shares == (-math.inf, math.inf)


def test_the_interval_of_one_side() -> None:
    low, high = interval_of(figures(99, 100, 101))
    assert (low + high) / 2 == pytest.approx(100)
    assert high - 100 == pytest.approx(4.303 / math.sqrt(3), rel=0.01)
    assert interval_of(figures(100))[1] == pytest.approx(100 + 1.96 * 1.5, rel=1e-3)


@each_row("seed", range(50))
def test_an_instant_is_attributed_to_what_began_first_or_as_a_gap(
    seed: int,
) -> None:
    """Nanosecond by nanosecond."""
    chosen = random.Random(seed)
    longest = chosen.choice((1, 10, 200))
    start = np.sort([chosen.randrange(1000) for _ in range(chosen.randrange(1, 60))])
    # One may end before it starts, by a clock that was set.
    end = start + np.array([chosen.randrange(-1, longest + 1) for _ in start])
    busy, gap = np.zeros((2, len(start)), np.int64)
    for moment in range(start[0], max(end.max(), start[-1])):
        running = np.flatnonzero((start <= moment) & (moment < end))
        if len(running):
            busy[running[0]] += 1
        else:
            gap[np.searchsorted(start, moment, side="right")] += 1
    assert [each.tolist() for each in attributed(start, end)] == [busy.tolist(), gap.tolist()]
    assert [each.tolist() for each in attributed(start[:0], end[:0])] == [[], []]


@each_row(
    ("length", "steps"),
    [
        ([5.0], [0]),
        ([5.0, 1.0, 9.0], [0, 1, 2]),
        ([5.0, 1.0, 9.0, 4.0], [0, 3]),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 600.0, 7.0, 8.0], [2, 3, 4, 6]),
    ],
)
def test_the_middle_of(length: list[float], steps: list[int]) -> None:
    assert typical_step(np.array(length)).steps.tolist() == steps


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_error_is_that_of_other_recordings(share: float) -> None:
    """The standard error of one recording, beside how far the means of many lie apart."""
    chance = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(300):
        part = chance.normal(10, share, 64)
        length = part + chance.normal(90, 1 - share, 64)
        middle = typical_step(length)
        means.append(middle.mean(part[None])[0])
        errors.append(middle.error(part[None])[0])
    assert np.median(errors) == pytest.approx(np.std(means), rel=0.25)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("triton_poi_fused_mul_silu_3", "triton_poi_fused_mul_silu_11"),
        ("void marlin::Marlin<1l, 2l>(int4 const*)", "void Marlin<1, 2>(int4*)"),
        ("kernel_cutlass_gemm_9f86d081884c7d65", "kernel_cutlass_gemm_60303ae22b998861"),
    ],
)
def test_the_same_kernel_has_one_name(one: str, other: str) -> None:
    assert stable_name(one) == stable_name(other)


@each_row(
    ("one", "other"),
    [
        ("triton_poi_fused_mul_3", "triton_poi_fused_add_3"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x8_64x16_2x1_v_bz_TNT"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "_matmul_ogs_NNT_bf16xbf16xmxfp4_32x128"),
        ("kernel_unified_attention_2d", "kernel_unified_attention_3d"),
        ("void Marlin<1, 2>(int4*)", "void Marlin<1, 3>(int4*)"),
        ("void marlin::Marlin<1, 2>(int4*)", "void marlin_moe_wna16::Marlin<1, 2>(int4*)"),
    ],
)
def test_other_kernels_stay_apart(one: str, other: str) -> None:
    assert stable_name(one) != stable_name(other)


def test_hostile_names_are_bounded() -> None:
    for name in ("a_" * 500_000, "triton_poi_fused" + "_1" * 300_000, "x_" + "0d" * 300_000, ""):
        assert len(stable_name(name)) <= 8192


RUNS = 200


@pytest.fixture(scope="module")
def pools() -> Sequence[Pool]:
    return step_pools(np.random.default_rng(11), 30)


def slack(share: float, runs: int = RUNS) -> float:
    """What chance adds to a share of this many comparisons in fewer than 1 of 10,000 cases."""
    return 3.9 * math.sqrt(share * (1 - share) / runs)


@each_row("recordings", [1, 5])
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


@pytest.mark.slow
def test_starts_that_move_all_kernels_together_make_none_certain() -> None:
    random = np.random.default_rng(14)
    for parts in part_pools(random, 12).values():
        for recordings in (1, 3):
            # The rows of one comparison share their starts, so that its runs are what counts.
            found = cell(random, parts, 60, 0.015, recordings, 0.0, 0.004)
            assert found.covered >= COVERAGE - slack(COVERAGE, 60)


def test_steps_are_drawn_three_times_as_long_as_they_are_alike() -> None:
    """Of ten neighbours each: about ten are as alike as one, so that 30 are drawn together."""
    tens = np.repeat(np.random.default_rng(5).normal(size=40), 10)
    assert 22 <= stretch_of(tens) <= 40
    own = np.random.default_rng(5).normal(size=400)
    assert stretch_of(own) == round(math.cbrt(400))
    # Four stretches are left, whatever the steps are.
    assert stretch_of(np.arange(80.0)) <= 80 // 4


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_one_recording_varies_as_the_other_side_s_several(times: float) -> None:
    """Their standard deviation, 10 of 100, is taken in proportion: its square is the variance."""
    one, several = figures(100 * times, start=1e-6), figures(90, 100, 110)
    found = change(one, several)
    own, others = (10 * times) ** 2, 10**2 / 3
    free = (own + others) ** 2 / (own**2 / 2 + others**2 / 2)
    least, most = (student_quantile(0.975, n) * math.sqrt(own + others)
                   for n in (math.ceil(free), math.floor(free)))  # fmt: skip
    assert 0.99 * least <= found.high - found.us <= 1.01 * most
