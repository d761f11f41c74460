"""The order of blocks, timed steps, and the quads that they make."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from spark_prof.ab.timed_steps import (
    SETTLE,
    TimedStep,
    block_order,
    make_quads,
    middle_mean,
    quads_within,
    share_ahead,
)
from spark_prof.errors import CommandError
from tests.ab.timed import START_NS, STEP_US, timed
from tests.rows import each_row

PLAN = block_order(4, 10)


def steps() -> list[TimedStep]:
    return timed(PLAN, lambda side, place, index: STEP_US if side == "a" else STEP_US / 2)


def test_quads_are_abba_or_baab() -> None:
    plan = block_order(64, 5)
    fours = {"".join(block.side for block in plan[i : i + 4]) for i in range(0, 256, 4)}
    assert fours == {"abba", "baab"}
    assert {block.steps for block in plan} == {5}
    assert [block.side for block in block_order(1, 9, ("a", "a2"))] == ["a", "a2", "a2", "a"]
    for quads, count in ((0, 20), (-1, 20), (4, SETTLE), (4, 0)):
        with pytest.raises(CommandError, match="cannot be measured"):
            block_order(quads, count)


@each_row(("quads", "power"), [(1, 1), (2, 2), (4, 3), (8, 4), (6, 2), (12, 3), (50, 2)])
def test_drift_cancels(quads: int, power: int) -> None:
    sums = {"a": 0, "b": 0}
    place = 0
    for block in block_order(quads, 7):
        for _ in range(block.steps):
            sums[block.side] += place**power
            place += 1
    assert sums["a"] == sums["b"]


@each_row(
    ("seconds", "step", "steps", "quads"),
    [
        (8.0, 0.001, 20, 100), (8.0, 0.00101, 20, 98), (0.1, 0.1, 20, 2), (1e9, 1e-6, 3, 1024),
        (0.0, 0.1, 20, 2), (-1.0, 0.1, 20, 2), (1.0, 0.0, 20, 2), (1.0, -1.0, 20, 2),
    ],
)  # fmt: skip
def test_quads_of_a_time(seconds: float, step: float, steps: int, quads: int) -> None:
    assert quads_within(seconds, step, steps) == quads


def test_the_share_of_steps_in_which_the_host_was_ahead() -> None:
    rows = [replace(steps()[0], ahead=ahead) for ahead in (True, False, True, None)]
    assert share_ahead(rows, "a") == 2 / 3
    assert share_ahead(rows, "b") is None


def test_quads_have_both_sides_times_and_the_spans_of_blocks() -> None:
    quads, dropped = make_quads(steps())
    assert not dropped
    assert [(quad.a_us, quad.b_us, quad.steps) for quad in quads] == [(3000.0, 1500.0, 32)] * 4
    spans = [span for quad in quads for span in quad.spans]
    assert [side for side, _, _ in spans] == [block.side for block in PLAN]
    assert spans[0][1] == START_NS
    assert all(end == start for (_, _, end), (_, start, _) in pairwise(spans))
    assert make_quads(steps()[::-1]) == make_quads(steps())


def test_first_steps_of_a_block_do_not_count() -> None:
    begun = timed(PLAN, lambda side, place, index: 9e5 if index < 2 else STEP_US)
    quads, _ = make_quads(begun)
    assert {(quad.a_us, quad.b_us, quad.steps) for quad in quads} == {(STEP_US, STEP_US, 32)}


def test_what_is_late_hardly_moves_the_middle() -> None:
    for late in (1.1, 50.0, 1000.0):
        assert middle_mean([3000] * 12 + [round(3000 * late)] * 4) == 3000
    # A step that starts late is longer, and the next one shorter.
    starts = [0, 100, 230, 300, 400, 480, 600, 710, 800]
    durations = [end - start for start, end in pairwise(starts)]
    assert middle_mean(durations) == pytest.approx(100, rel=0.03)


def changed(where: Callable[[TimedStep], bool], **fields: object) -> list[TimedStep]:
    return [replace(step, **fields) if where(step) else step for step in steps()]


@each_row(
    ("found", "quad", "why"),
    [
        *(([s for s in steps() if s.block != gone], gone // 4, "has 0 steps that count")
          for gone in (3, 4, 8, 15)),
        ([s for s in steps() if s.block != 5 or s.index < 5], 1, "3 steps that count; 4 are"),
        *((changed(lambda s: s.block in (4, 5), side=each), 1, "order") for each in "abc"),
        (changed(lambda s: s.block == 0 and s.index > 5, side="b"), 0, "order"),
        (changed(lambda s: s.block == 9, duration_ns=0), 2, "a step has no duration"),
        (changed(lambda s: s.block == 6, context_tokens=9000), 1, "contexts of"),
    ],
)  # fmt: skip
def test_quads_that_are_not_whole_are_dropped(found: list[TimedStep], quad: int, why: str) -> None:
    quads, dropped = make_quads(found)
    assert [drop.quad for drop in dropped] == [quad]
    assert why in dropped[0].why
    assert [each.number for each in quads] == [each for each in range(4) if each != quad]


def test_blocks_may_differ_in_length_and_contexts_grow() -> None:
    quads, dropped = make_quads([s for s in steps() if s.block != 5 or s.index < 6])
    assert not dropped
    assert quads[1].steps == 28
    grown = timed(PLAN, lambda side, place, index: STEP_US, lambda place: 10 * place + 1)
    assert not make_quads(grown)[1]
