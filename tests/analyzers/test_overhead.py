"""What watching cost: planted costs are found again, and nothing is said where nothing is known."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from spark_prof.analyzers.overhead import Overhead, overhead_of
from tests.rows import each_row
from tests.support import Piece, Recorded, step

STRETCHES = 8
STEADY = 100_000
"""Nanoseconds of a step that is only timed."""


def measure(folder: Path, steps: Iterable[tuple[int, bool, int, str]]) -> dict[int, Overhead]:
    """What watching costs in steps of (batch size, watched, nanoseconds, phase), one by one."""
    rows, now = [], 0
    for number, (size, watched, took, phase) in enumerate(steps):
        kind = "prefill" if phase == "prefill" else "decode"
        counts = {f"{kind}_requests": size, "watched": int(watched)}
        rows.append(step(number, now, now + took - 10, phase, **counts))
        now += took
    bundle = Recorded({0: [Piece(rows)]}).assemble(folder / "b")
    return {found.batch_size: found for found in overhead_of(bundle, 0)}


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


@each_row("cost", [0.97, 1.0, 1.05, 7.4])
def test_a_planted_cost_is_found(tmp_path: Path, cost: float) -> None:
    [found] = measure(tmp_path, turns(cost)).values()
    assert found.ratio == pytest.approx(cost, rel=1e-4)
    assert found.watched_us == pytest.approx(100 * cost, rel=1e-4)
    assert found.timed_us == pytest.approx(100)
    assert found.stretches == STRETCHES - 1  # the last one has no timed one after it
    assert found.lowest == pytest.approx(found.highest)
    assert found.run_ratio == pytest.approx((1 + cost) / 2, abs=cost / 100)


@each_row("drift", [0.002, -0.001])
def test_a_growing_context_cancels(tmp_path: Path, drift: float) -> None:
    """Over the run the steps become up to a third slower; the ratio is that of neighbours."""
    [found] = measure(tmp_path, turns(1.05, drift=drift)).values()
    assert found.ratio == pytest.approx(1.05, abs=2e-3)
    assert (found.lowest, found.highest) == pytest.approx((1.05, 1.05), abs=5e-3)


def test_the_switches_count_to_the_run_and_not_to_the_steps(tmp_path: Path) -> None:
    [found] = measure(tmp_path, turns(1.05, switch=STEADY)).values()
    assert found.ratio == pytest.approx(1.05, rel=1e-4)
    assert found.run_ratio == pytest.approx(1.025 + 0.3, abs=0.02)


def test_batch_sizes_are_kept_apart(tmp_path: Path) -> None:
    found = measure(tmp_path, [*turns(1.10), *turns(1.02, size=8), *turns(1.20)])
    assert {size: row.stretches for size, row in found.items()} == {1: 14, 8: 7}
    assert (found[1].lowest, found[1].highest) == pytest.approx((1.10, 1.20), rel=1e-4)
    assert found[8].ratio == pytest.approx(1.02, rel=1e-4)


SIX = turns(1.05, watched=6, timed=6, stretches=2)
SLOW = [(1, True, 50 * STEADY, "decode")]
PREFILL = [(1, False, 9 * STEADY, "prefill")]
TURNS = turns(1.05)


@each_row(
    ("steps", "fewest", "most"),
    [
        pytest.param([*TURNS[:15], *SLOW, *TURNS[16:]], 7, 7, id="one slow step decides nothing"),
        pytest.param(SIX, 1, 1, id="six steps are enough"),
        pytest.param([*TURNS[:45], *PREFILL, *TURNS[45:]], 1, STRETCHES - 2,
                     id="a prefill costs only its stretch"),
    ],
)  # fmt: skip
def test_what_is_compared(
    tmp_path: Path, steps: list[tuple[int, bool, int, str]], fewest: int, most: int
) -> None:
    found = measure(tmp_path, steps)[1]
    assert found.ratio == pytest.approx(1.05, rel=1e-4)
    assert fewest <= found.stretches <= most


@each_row(
    "steps",
    [
        # Two intervals feel the switch, one contains the next, and three must be left.
        *(
            turns(1.05, watched=watched, timed=timed, stretches=stretches)
            for watched, timed, stretches in (
                (5, 10, 8), (10, 5, 8), (3, 3, 50), (10, 10, 1), (1, 1, 100),
            )
        ),
        *([(1, watched, STEADY, "decode")] * 100 for watched in (True, False)),
        pytest.param([*turns(1.05, stretches=2)[:20], *PREFILL, *turns(1.05, stretches=2)[20:]],
                     id="a prefill between two stretches: the context is another one afterwards"),
    ],
)  # fmt: skip
def test_nothing_is_compared(tmp_path: Path, steps: list[tuple[int, bool, int, str]]) -> None:
    assert measure(tmp_path, steps) == {}
