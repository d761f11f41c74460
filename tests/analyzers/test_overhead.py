"""What watching cost: planted costs are found again, and nothing is said where nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from spark_prof.analyzers.overhead import Overhead, overhead_of
from tests.support import Piece, Recorded, step

Time = Callable[[int], int]
Measure = Callable[..., dict[int, Overhead]]
STRETCHES = 8
STEADY = 100_000
"""Nanoseconds of a step that is only timed."""


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Runs steps of (batch size, watched, nanoseconds, phase) one after another."""

    def measured(steps: Iterable[tuple[int, bool, int, str]]) -> dict[int, Overhead]:
        rows, now = [], 0
        for number, (size, watched, took, phase) in enumerate(steps):
            kind = "prefill" if phase == "prefill" else "decode"
            counts = {f"{kind}_requests": size, "watched": int(watched)}
            rows.append(step(number, now, now + took - 10, phase, **counts))
            now += took
        bundle = Recorded({0: [Piece(rows)]}).assemble(tmp_path / "b")
        return {found.batch_size: found for found in overhead_of(bundle, 0)}

    return measured


def turns(
    cost: float, size: int = 1, *, watched: int = 10, timed: int = 10, stretches: int = STRETCHES,
    drift: float = 0.0, switch: int = 0,
) -> list[tuple[int, bool, int, str]]:  # fmt: skip
    """Watched steps that take `cost` times as long as the timed ones they take turns with.

    Each step takes `drift` longer than the one before it, and `switch` ns more where it is the
    last or one of the first two of its stretch.
    """
    steps: list[tuple[int, bool, int, str]] = []
    for _ in range(stretches):
        for is_watched, length in ((False, timed), (True, watched)):
            for position in range(length):
                took = STEADY * (1 + drift * len(steps)) * (cost if is_watched else 1)
                extra = switch if position < 2 or position == length - 1 else 0
                steps.append((size, is_watched, round(took) + extra, "decode"))
    return steps


@pytest.mark.parametrize("cost", [0.97, 1.0, 1.05, 1.25, 7.4])
def test_a_planted_cost_is_found(measure: Measure, cost: float) -> None:
    [found] = measure(turns(cost)).values()
    assert found.ratio == pytest.approx(cost, rel=1e-4)
    assert found.watched_us == pytest.approx(100 * cost, rel=1e-4)
    assert found.timed_us == pytest.approx(100)
    assert found.stretches == STRETCHES - 1  # the last one has no timed one after it
    assert found.lowest == pytest.approx(found.highest)
    assert found.run_ratio == pytest.approx((1 + cost) / 2, abs=cost / 100)


@pytest.mark.parametrize("drift", [0.0005, 0.002, -0.001])
def test_a_growing_context_cancels(measure: Measure, drift: float) -> None:
    """Over the run the steps become up to a third slower; the ratio is that of neighbours."""
    [found] = measure(turns(1.05, drift=drift)).values()
    assert found.ratio == pytest.approx(1.05, abs=2e-3)
    assert found.lowest == pytest.approx(1.05, abs=5e-3)
    assert found.highest == pytest.approx(1.05, abs=5e-3)


def test_the_switches_count_to_the_run_and_not_to_the_steps(measure: Measure) -> None:
    [found] = measure(turns(1.05, switch=STEADY)).values()
    assert found.ratio == pytest.approx(1.05, rel=1e-4)
    assert found.run_ratio == pytest.approx(1.025 + 0.3, abs=0.02)


def test_batch_sizes_are_kept_apart(measure: Measure) -> None:
    found = measure([*turns(1.10, size=1), *turns(1.02, size=8), *turns(1.20, size=1)])
    assert {size: row.stretches for size, row in found.items()} == {1: 14, 8: 7}
    assert (found[1].lowest, found[1].highest) == pytest.approx((1.10, 1.20), rel=1e-4)
    assert found[8].ratio == pytest.approx(1.02, rel=1e-4)


def test_one_slow_step_does_not_decide(measure: Measure) -> None:
    steps = turns(1.05)
    steps[15] = (1, True, 50 * STEADY, "decode")
    assert measure(steps)[1].ratio == pytest.approx(1.05, rel=1e-4)


@pytest.mark.parametrize(
    ("watched", "timed", "stretches"),
    [(5, 10, 8), (10, 5, 8), (3, 3, 50), (10, 10, 1), (1, 1, 100)],
)
def test_too_few_steps_tell_nothing(
    measure: Measure, watched: int, timed: int, stretches: int
) -> None:
    """Two intervals feel the switch, one contains the next, and three must be left."""
    assert measure(turns(1.05, watched=watched, timed=timed, stretches=stretches)) == {}


def test_six_steps_are_enough(measure: Measure) -> None:
    found = measure(turns(1.05, watched=6, timed=6, stretches=2))
    assert (found[1].ratio, found[1].stretches) == (pytest.approx(1.05, rel=1e-4), 1)


@pytest.mark.parametrize("watched", [True, False])
def test_without_turns_nothing_is_compared(measure: Measure, watched: bool) -> None:
    assert measure([(1, watched, STEADY, "decode")] * 100) == {}


def test_prefill_between_two_stretches_makes_them_no_neighbours(measure: Measure) -> None:
    """The context is another one afterwards."""
    steps = turns(1.05, stretches=2)
    steps[20:20] = [(1, False, 9 * STEADY, "prefill")]
    assert measure(steps) == {}


def test_a_prefill_among_the_steps_costs_only_its_stretch(measure: Measure) -> None:
    steps = turns(1.05)
    steps[45:45] = [(1, False, 9 * STEADY, "prefill")]
    found = measure(steps)[1]
    assert found.ratio == pytest.approx(1.05, rel=1e-4)
    assert 0 < found.stretches < STRETCHES - 1
