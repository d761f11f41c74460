"""Ranks that are slower than others are found; equal ones, of which somebody is last, are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spark_prof.analyzers.model import Lateness
from spark_prof.analyzers.ranks.lateness import interval_of_mean
from spark_prof.analyzers.ranks.rank_summary import collectives_of
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.analyzers.reported import reported
from tests.rows import each_row

STEP_US = 330.0  # of a play: three stretches of 100 us and their transfers
LATE_US = 16.5  # 5 % of it


def played(folder: Path, play: Play, batch: int | None = None) -> tuple[Lateness, ...]:
    """What is told of a run on one host, of steps of that batch size."""
    facts = {rank: {"host": "a", "boot": "1"} for rank in range(play.ranks)}
    made = bundle(folder, play, facts, parallel=parallel(tensor=play.ranks))
    return tuple(late for late in collectives_of(made)[0].lateness if late.batch == batch)


def slower(*ranks: int, us: float = LATE_US) -> Callable[[int, int, int], float]:
    """Ranks whose stretches within a step take longer, by so much a step."""
    return lambda _, place, rank: us / 2 * 1e3 if rank in ranks and place else 0.0


@pytest.mark.slow
@each_row("ranks", [2, 4])
def test_equal_ranks_are_not_blamed(tmp_path: Path, ranks: int) -> None:
    told = [
        played(tmp_path / str(seed), Play(ranks, 24, seed, compute_ns=100_000)) for seed in range(4)
    ]
    assert sum(map(bool, told)) <= 1


@each_row("ranks", [2, 4])
def test_a_rank_that_is_five_per_cent_slower_is_found(tmp_path: Path, ranks: int) -> None:
    (late,) = played(tmp_path / "b", Play(ranks, 100, extra_ns=slower(1)))
    assert (late.place, late.ranks, late.steps) == ("inside", (1,), 100)
    assert 1 not in late.others
    assert len(late.others) == ranks - 1
    assert late.low_us <= LATE_US <= late.high_us
    assert late.us == pytest.approx(LATE_US, rel=0.3)


def test_two_slow_ranks_are_told_together(tmp_path: Path) -> None:
    (late,) = played(tmp_path / "b", Play(5, 100, extra_ns=slower(1, 3)))
    assert late.ranks == (1, 3)


def test_a_rank_that_gets_slower_is_found(tmp_path: Path) -> None:
    def drifting(step: int, place: int, rank: int) -> float:
        return 400.0 * step if rank == 0 and place else 0.0

    (late,) = played(tmp_path / "b", Play(2, 100, extra_ns=drifting))
    assert (late.place, late.ranks) == ("inside", (0,))
    assert late.us == pytest.approx(2 * 0.4 * 49.5, rel=0.2)


def test_what_one_batch_size_says_is_not_said_of_another(tmp_path: Path) -> None:
    """A rank that is late at batch 8 alone, in the second half."""

    def late_with_many(step: int, place: int, rank: int) -> float:
        return 30_000.0 if rank == 1 and place and step >= 50 else 0.0

    play = Play(2, 100, extra_ns=late_with_many, batch=dict.fromkeys(range(50, 100), 8))
    assert played(tmp_path / "1", play, 1) == ()
    (late,) = played(tmp_path / "8", play, 8)
    assert (late.ranks, late.steps) == ((1,), 50)
    assert late.us == pytest.approx(60, rel=0.2)


def test_a_step_that_is_launched_late_is_told_apart(tmp_path: Path) -> None:
    def launched_late(_: int, place: int, rank: int) -> float:
        return 20_000.0 if rank == 1 and not place else 0.0

    (late,) = played(tmp_path / "b", Play(2, 100, extra_ns=launched_late))
    assert (late.place, late.ranks) == ("start", (1,))
    assert late.us == pytest.approx(20, rel=0.3)


@pytest.mark.slow
@each_row("first", [frozenset({0, 40, 41}), frozenset()])
def test_what_happens_once_is_no_lateness(tmp_path: Path, first: frozenset[int]) -> None:
    """Prefills, or decode steps of which one rank compiles a kernel for 200 ms."""

    def compiling(step: int, place: int, rank: int) -> float:
        return 2e8 if rank == 1 and step in (0, 40, 41) and place == 1 else 0.0

    play = Play(2, 80, seed=3, extra_ns=compiling, prefills=first)
    facts = {rank: {"host": "a", "boot": "1"} for rank in range(2)}
    report = reported(bundle(tmp_path / "b", play, facts, parallel=parallel(tensor=2)))
    assert report.collectives.lateness == ()
    assert not [f for f in report.findings if f.id == "straggler-rank"]


def test_another_hosts_clock_makes_no_rank_late(tmp_path: Path) -> None:
    facts = {0: {"host": "a", "boot": "1"}, 1: {"host": "b", "boot": "2"}}
    play = Play(2, 100, offset_ns={1: 5_000_000}, extra_ns=slower())
    assert collectives_of(bundle(tmp_path / "a", play, facts))[0].lateness == ()
    play = Play(2, 100, offset_ns={1: 5_000_000}, extra_ns=slower(0))
    late, _ = collectives_of(bundle(tmp_path / "b", play, facts))[0].lateness
    assert late.ranks == (0,)


def test_intervals_are_right_as_often_as_they_say() -> None:
    """Of noise whose neighbours are alike too: 5 % of the intervals of 95 % leave zero out."""
    rng = np.random.default_rng(5)
    outside = 0
    for _ in range(400):
        noise = rng.normal(size=150)
        for index in range(1, len(noise)):
            noise[index] += 0.5 * noise[index - 1]
        found = interval_of_mean(noise[50:], 0.05)
        outside += not found.low <= 0 <= found.high
    assert outside <= 28


@each_row("number", [8, 40, 99, 100, 400])
@each_row("scale", [1e-3, 1.0, 7e4])
def test_an_interval_of_a_mean_does_not_depend_on_the_unit(number: int, scale: float) -> None:
    """Nor on where the clock began, or in which direction it went."""
    values = np.random.default_rng(number).normal(0, 1, number + 3)
    values = np.convolve(values, np.ones(4) / 4, "valid")  # neighbours are alike
    one = interval_of_mean(values, 0.05)
    assert one.mean == pytest.approx(values.mean())
    assert one.low < one.mean < one.high
    assert one.high - one.mean == pytest.approx(one.mean - one.low)
    other = interval_of_mean(scale * values + 5, 0.05)
    back = interval_of_mean(values[::-1], 0.05)
    for bound in ("mean", "low", "high"):
        assert getattr(other, bound) == pytest.approx(scale * getattr(one, bound) + 5)
        if number % 10 == 0:  # in equal blocks
            assert getattr(back, bound) == pytest.approx(getattr(one, bound))
    assert interval_of_mean(values, 0.01).low < one.low
