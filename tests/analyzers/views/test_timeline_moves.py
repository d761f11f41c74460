"""Ranges and steps of a time line, and one call among its like."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spark_prof.analyzers.views import timeline_calls
from spark_prof.analyzers.views.timeline_calls import call_at, find_call, find_kernel
from spark_prof.analyzers.views.timeline_moves import (
    SHORTEST_NS,
    Range,
    neighbour_step,
    recorded,
    step_range,
    steps_in,
    typical,
)
from tests.rows import each_row

from .timeline_kernels import ORIGIN, columns, random_rows, steps

OUTER = Range(-1_000, 10_001)


@each_row("seed", range(30))
def test_a_range_stays_inside_and_is_never_too_short(seed: int) -> None:
    chosen = random.Random(seed)
    shown = Range(chosen.randrange(-5_000, 15_000), 20_000)
    for _ in range(20):
        closer, later = chosen.random() < 0.5, chosen.random() < 0.5
        moved = shown.moved(later=later)
        assert moved.length_ns == shown.length_ns
        for other in (shown.zoomed(chosen.choice([2, 10]), closer=closer), moved):
            shown = other.within(OUTER)
            assert OUTER.from_ns <= shown.from_ns < shown.to_ns <= OUTER.to_ns
            assert shown.length_ns >= SHORTEST_NS


def test_zooming_out_undoes_zooming_in() -> None:
    shown = Range(100_000, 200_000)
    assert shown.zoomed(10, closer=True) == Range(145_000, 155_000)
    assert shown.zoomed(10, closer=True).zoomed(10, closer=False) == shown


def test_the_recording_is_from_the_first_kernel_or_step_to_the_last() -> None:
    table = columns([(10, 500, 0, 0, 0, 0), (20, 30, 0, 0, 0, 0)])
    assert recorded(table, steps()) == Range(ORIGIN + 10, ORIGIN + 500)
    found = recorded(table, steps((0, 100), (100, 700)))
    assert found == Range(ORIGIN, ORIGIN + 700)
    assert recorded(columns([]), steps()).length_ns == SHORTEST_NS
    assert recorded(columns([(5, 5, 0, 0, 0, 0)]), steps()).length_ns == SHORTEST_NS


def test_steps_beside_and_within_a_range() -> None:
    table = steps((0, 1_000), (1_000, 1_800), (3_000, 4_000))
    window = step_range(table, 1)
    assert window == Range(ORIGIN + 1_000, ORIGIN + 1_800)
    assert step_range(table, 7) is None
    assert neighbour_step(table, window, later=True) == 2
    assert neighbour_step(table, window, later=False) == 0
    between = Range(ORIGIN + 1_900, ORIGIN + 2_900)
    assert neighbour_step(table, between, later=True) == 2
    assert neighbour_step(table, between, later=False) == 0
    assert neighbour_step(table, Range(ORIGIN - 500, ORIGIN - 400), later=True) == 0
    assert neighbour_step(table, Range(ORIGIN - 500, ORIGIN - 400), later=False) is None
    assert neighbour_step(steps(), between, later=True) is None
    assert steps_in(table, between).empty
    assert steps_in(table, Range(ORIGIN + 1_799, ORIGIN + 3_001))["step"].tolist() == [1, 2]


def test_typical_steps_are_among_those_that_decode() -> None:
    table = steps((0, 9_000), (9_000, 9_100), (9_100, 9_400), (9_400, 9_600))
    table["phase"] = ["prefill", "decode", "decode", "decode"]
    assert (typical(table, "median"), typical(table, "slowest")) == (3, 2)
    table["phase"] = "mixed"
    assert typical(table, "slowest") == 0
    assert typical(steps(), "median") is None


@each_row("block", [1 << 18, 4])
@each_row("seed", range(15))
def test_a_call_knows_its_neighbours_and_its_like(
    seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_calls, "_BLOCK", block)
    table = columns(random_rows(seed), names=("a", "b", "c"))
    start, end = table.start_ns.tolist(), table.end_ns.tolist()
    for place in range(len(table)):
        found = call_at(table, place)
        same = [p for p in range(len(table)) if table.stream[p] == table.stream[place]]
        earlier = [p for p in same if p < place]
        later = [p for p in same if p > place]
        assert found.after == (later[0] if later else -1)
        if earlier:
            reached = max(end[p] for p in earlier)
            assert end[found.before] == reached
            assert found.gap_ns == max(start[place] - reached, 0)
        else:
            assert (found.before, found.gap_ns) == (-1, None)
        idle = max(start[place] - max(end[:place]), 0) if place else None
        assert found.idle_ns == idle
        took = [end[p] - start[p] for p in range(len(table)) if table.name[p] == table.name[place]]
        assert found.calls == len(took)
        assert found.longer == sum(t > end[place] - start[place] for t in took)
        assert found.median_ns == int(np.median(took))


@pytest.mark.parametrize("block", [1 << 18, 2])
def test_the_next_call_is_found_and_then_the_first_again(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_calls, "_BLOCK", block)
    names = ("flash_attn", "Gemm<1>", "norm", "ATTN_combine")
    table = columns([(10 * k, 10 * k + 5, 0, 0, 0, 0) for k in range(12)], names=names)
    found = find_call(table, "attn", -1)
    assert (found.place, found.names, found.wrapped) == (0, 2, False)
    places = []
    for _ in range(7):
        found = find_call(table, "Attn", found.place)
        places.append((found.place, found.wrapped))
    assert places == [
        (3, False), (4, False), (7, False), (8, False), (11, False), (0, True), (3, False)
    ]  # fmt: skip
    assert find_call(table, "<1>", 100).place == 1
    assert find_call(table, "no such", -1).place == find_call(table, "", -1).place == -1


def test_the_first_call_of_a_kernel_is_one_of_a_step_if_there_is_one() -> None:
    rows = [(0, 5, 0, 0, 0, -1), (10, 15, 0, 0, 0, -1), (20, 25, 0, 0, 0, 0), (30, 35, 0, 0, 0, -1)]
    table = columns(rows, names=("a", "b"))
    assert (find_kernel(table, 0), find_kernel(table, 1)) == (2, 1)
    assert find_kernel(table, 5) is None
