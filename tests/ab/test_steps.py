"""Quads of timed steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from spark_prof.ab.steps import Step, block_order, make_quads, middle_mean, read_steps, share_ahead
from spark_prof.errors import CommandError
from tests.ab.timed import START_NS, STEP_US, timed
from tests.rows import each_row

PLAN = block_order(4, 10)
ROW = [0, "a", 0, 3_000_000, START_NS, 0, 1, 100, True]


def steps() -> list[Step]:
    return timed(PLAN, lambda side, place, index: STEP_US if side == "a" else STEP_US / 2)


def test_rows_are_read() -> None:
    assert read_steps([ROW]) == (Step(0, "a", 0, 3_000_000, START_NS, 0, 1, 100, True),)


@each_row(
    "row",
    [
        [],
        ROW[:-1],
        [*ROW, 1],
        "abcdefgh",
        [*ROW[:1], 7, *ROW[2:]],
        [*ROW[:3], 1.5, *ROW[4:]],
        [*ROW[:3], float("nan"), *ROW[4:]],
        [*ROW[:3], -1, *ROW[4:]],
        [*ROW[:3], True, *ROW[4:]],
        [*ROW[:3], 1 << 62, *ROW[4:]],
        [*ROW[:3], None, *ROW[4:]],
        [*ROW[:8], 1],
    ],
)
def test_other_rows_are_refused(row: list[object]) -> None:
    with pytest.raises(CommandError, match="step 1 of the engine's times"):
        read_steps([ROW, row])


def test_the_share_of_steps_in_which_the_host_was_ahead() -> None:
    rows = [[*ROW[:8], ahead] for ahead in (True, False, True, None)]
    found = read_steps(rows)
    assert share_ahead(found, "a") == 2 / 3
    assert share_ahead(found, "b") is None


def test_quads_have_both_sides_times() -> None:
    quads, dropped = make_quads(steps())
    assert not dropped
    assert [(quad.a_us, quad.b_us, quad.steps) for quad in quads] == [(3000.0, 1500.0, 32)] * 4


def test_spans_are_the_blocks() -> None:
    quads, _ = make_quads(steps())
    spans = [span for quad in quads for span in quad.spans]
    assert [side for side, _, _ in spans] == [block.side for block in PLAN]
    assert spans[0][1] == START_NS
    assert all(end == start for (_, _, end), (_, start, _) in pairwise(spans))


def test_first_steps_of_a_block_do_not_count() -> None:
    begun = timed(PLAN, lambda side, place, index: 9e5 if index < 2 else STEP_US)
    quads, _ = make_quads(begun)
    assert {(quad.a_us, quad.b_us, quad.steps) for quad in quads} == {(STEP_US, STEP_US, 32)}
    all_of_them, _ = make_quads(begun, settle=0)
    assert {quad.steps for quad in all_of_them} == {40}


def test_the_order_of_steps_does_not_matter() -> None:
    assert make_quads(steps()[::-1]) == make_quads(steps())


@pytest.mark.parametrize("late", [1.1, 50.0, 1000.0])
def test_a_quarter_of_late_steps_moves_nothing(late: float) -> None:
    assert middle_mean([3000] * 12 + [round(3000 * late)] * 4) == 3000


def test_a_step_that_starts_late_cancels() -> None:
    starts = [0, 100, 230, 300, 400, 480, 600, 710, 800]
    durations = [end - start for start, end in pairwise(starts)]
    assert middle_mean(durations) == pytest.approx(100, rel=0.03)


@each_row("missing", [3, 4, 8, 15])
def test_quads_that_are_not_whole_are_dropped(missing: int) -> None:
    quads, dropped = make_quads([step for step in steps() if step.block != missing])
    assert [drop.quad for drop in dropped] == [missing // 4]
    assert "0 steps that count" in dropped[0].why
    assert len(quads) == 3


def test_blocks_of_few_steps_are_dropped() -> None:
    kept = [step for step in steps() if step.block != 5 or step.index < 5]
    quads, dropped = make_quads(kept)
    assert [drop.quad for drop in dropped] == [1]
    assert "3 steps that count; 4 are needed" in dropped[0].why
    assert [quad.number for quad in quads] == [0, 2, 3]


def test_blocks_may_differ_in_length() -> None:
    kept = [step for step in steps() if step.block != 5 or step.index < 6]
    quads, dropped = make_quads(kept)
    assert not dropped
    assert quads[1].steps == 28


@pytest.mark.parametrize("side", ["a", "b", "a2"])
def test_other_orders_are_dropped(side: str) -> None:
    changed = [replace(step, side=side) if step.block in (4, 5) else step for step in steps()]
    _, dropped = make_quads(changed)
    assert [drop.quad for drop in dropped] == [1]
    assert "order" in dropped[0].why


def test_one_block_on_two_sides_is_dropped() -> None:
    changed = [
        replace(step, side="b") if step.block == 0 and step.index > 5 else step for step in steps()
    ]
    _, dropped = make_quads(changed)
    assert [drop.quad for drop in dropped] == [0]


def test_a_step_without_duration_is_dropped() -> None:
    changed = [replace(step, duration_ns=0) if step.block == 9 else step for step in steps()]
    _, dropped = make_quads(changed)
    assert [(drop.quad, drop.why) for drop in dropped] == [(2, "a step has no duration")]


def test_a_context_that_grows_is_the_same_for_both() -> None:
    grown = timed(PLAN, lambda side, place, index: STEP_US, lambda place: 10 * place + 1)
    assert not make_quads(grown)[1]


def test_a_context_that_begins_again_is_dropped() -> None:
    """A request ends within the second quad, and the next one begins."""
    grown = timed(PLAN, lambda side, place, index: STEP_US, lambda place: 100 + (place + 30) % 80)
    _, dropped = make_quads(grown)
    assert 1 in {drop.quad for drop in dropped}
    assert all("contexts of" in drop.why for drop in dropped)
